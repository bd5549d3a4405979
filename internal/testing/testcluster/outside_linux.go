package testcluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"

	"k8s.io/client-go/rest"
)

// forwardOutside forwards an address on this machine's loopback to the API server, for programs
// outside the cluster's network.
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
			go c.forwardConn(conn)
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

// forwardConn forwards one connection.
func (c *Cluster) forwardConn(conn net.Conn) {
	defer conn.Close()
	to, err := c.Dial(context.Background(), "tcp", net.JoinHostPort(Address, "6443"))
	if err != nil {
		return
	}
	defer to.Close()
	done := make(chan struct{}, 2)
	carry := func(w, r net.Conn) {
		_, _ = io.Copy(struct{ io.Writer }{w}, struct{ io.Reader }{r}) // hide ReadFrom: splice would leave pipes behind
		_ = w.(*net.TCPConn).CloseWrite()
		done <- struct{}{}
	}
	go carry(to, conn)
	go carry(conn, to)
	<-done
	<-done
}

// OutsideKubeconfig returns the path of the administrator's kubeconfig for programs outside the
// cluster's network.
func (c *Cluster) OutsideKubeconfig() string { return c.filePath("outside.kubeconfig") }

// ConfigOf returns a client configuration for the API server at url, with a token. It has no rate
// limit, since tests would wait for a minute with the default of 5 requests a second.
func ConfigOf(url, token string) *rest.Config {
	return &rest.Config{Host: url, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}
}

// Config returns the administrator's client configuration for this program.
func (c *Cluster) Config() *rest.Config {
	return ConfigOf("https://"+c.outside.Addr().String(), c.Token)
}
