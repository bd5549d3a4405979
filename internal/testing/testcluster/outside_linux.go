package testcluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"

	"k8s.io/client-go/rest"
)

// forwardOutside has the API server answer on an address of this machine's loopback, too, for
// those who are not in the cluster's network.
func (c *Cluster) forwardOutside() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	c.outside = l
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go c.passConn(conn)
		}
	}()
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://%s", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: %q}}]
contexts: [{name: test, context: {cluster: test, user: admin, namespace: default}}]
current-context: test
`, l.Addr(), c.Token)
	return os.WriteFile(c.OutsideKubeconfig(), []byte(text), 0o600)
}

// passConn carries one connection.
func (c *Cluster) passConn(conn net.Conn) {
	defer conn.Close()
	to, err := c.Dial(context.Background(), "tcp", net.JoinHostPort(Address, "6443"))
	if err != nil {
		return
	}
	defer to.Close()
	done := make(chan struct{}, 2)
	carry := func(w, r net.Conn) {
		_, _ = io.Copy(struct{ io.Writer }{w}, struct{ io.Reader }{r}) // no splice, whose pipes stay
		_ = w.(*net.TCPConn).CloseWrite()
		done <- struct{}{}
	}
	go carry(to, conn)
	go carry(conn, to)
	<-done
	<-done
}

// OutsideKubeconfig is the path of a file by which programs that are not in the
// cluster's network reach it, as who may do everything.
func (c *Cluster) OutsideKubeconfig() string { return c.filePath("outside.kubeconfig") }

// ConfigOf reaches the cluster whose API server is at url, with a token, as often as is
// asked: the usual 5 requests a second would have tests wait for a minute.
func ConfigOf(url, token string) *rest.Config {
	return &rest.Config{Host: url, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}
}

// Config reaches the cluster from this program, as who may do everything.
func (c *Cluster) Config() *rest.Config {
	return ConfigOf("https://"+c.outside.Addr().String(), c.Token)
}
