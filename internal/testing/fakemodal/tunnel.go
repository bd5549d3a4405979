package fakemodal

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"sync"
	"time"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"

	"github.com/seed46cd37a8/atoll"
)

// A certificate is the TLS certificate of all tunnels.
type certificate struct {
	config *tls.Config
	pool   *x509.CertPool
}

func newCertificate() (*certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "fakemodal"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return &certificate{&tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, pool}, nil
}

// Certificates returns the certificates that clients of encrypted tunnels must trust. Those of the
// service have a public authority.
func (s *Server) Certificates() *x509.CertPool { return s.tls.pool }

// A tunnel forwards connections to a port of a sandbox.
type tunnel struct {
	port      uint32
	encrypted net.Listener
	plain     net.Listener // nil if the tunnel is encrypted only
	conns     sync.WaitGroup
	stop      context.CancelFunc
}

// openTunnels opens the requested tunnels. Each has an encrypted listener; some also have a plain one.
func (sb *sandbox) openTunnels(inner atoll.Sandbox) (list []*tunnel, err error) {
	defer func() {
		if err != nil {
			for _, t := range list {
				t.closeTunnel()
			}
		}
	}()
	for _, spec := range sb.def.GetOpenPorts().GetPorts() {
		ctx, stop := context.WithCancel(sb.ctx)
		t := &tunnel{port: spec.GetPort(), stop: stop}
		list = append(list, t)
		config := sb.s.tls.config.Clone()
		if spec.GetTunnelType() == pb.TunnelType_TUNNEL_TYPE_H2 {
			config.NextProtos = []string{"h2"}
		}
		if t.encrypted, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return list, err
		}
		t.acceptConns(ctx, sb, inner, t.encrypted, config)
		if !spec.GetUnencrypted() {
			continue
		}
		if t.plain, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return list, err
		}
		t.acceptConns(ctx, sb, inner, t.plain, nil)
	}
	return list, nil
}

// acceptConns accepts and forwards connections until the listener is closed.
func (t *tunnel) acceptConns(ctx context.Context, sb *sandbox, inner atoll.Sandbox, l net.Listener, config *tls.Config) {
	t.conns.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.conns.Go(func() {
				defer sb.use.beginUse()()
				t.forwardConn(ctx, inner, conn, config)
			})
		}
	})
}

// forwardConn copies data between one connection and the sandbox, until both directions have ended.
func (t *tunnel) forwardConn(ctx context.Context, inner atoll.Sandbox, conn net.Conn, config *tls.Config) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if config != nil {
		conn = tls.Server(conn, config)
	}
	inside, err := atoll.Dial(ctx, inner, int(t.port))
	if err != nil {
		return // nobody listens on the port
	}
	defer inside.Close()
	defer context.AfterFunc(ctx, func() { inside.Close() })()
	var both sync.WaitGroup
	both.Go(func() { copyHalf(inside, conn) })
	both.Go(func() { copyHalf(conn, inside) })
	both.Wait()
}

// copyHalf copies one direction and forwards its end.
func copyHalf(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		err = half.CloseWrite()
	}
	if err != nil {
		to.Close()
		from.Close()
	}
}

// closeTunnel closes the tunnel and its connections, and waits for them.
func (t *tunnel) closeTunnel() {
	t.stop()
	for _, l := range []net.Listener{t.encrypted, t.plain} {
		if l != nil {
			l.Close()
		}
	}
	t.conns.Wait()
}

func (t *tunnel) tunnelData() *pb.TunnelData {
	d := pb.TunnelData_builder{Host: "127.0.0.1", Port: uint32(t.encrypted.Addr().(*net.TCPAddr).Port), ContainerPort: t.port}.Build()
	if t.plain != nil {
		d.SetUnencryptedHost("127.0.0.1")
		d.SetUnencryptedPort(uint32(t.plain.Addr().(*net.TCPAddr).Port))
	}
	return d
}

// SandboxGetTunnels waits until a sandbox runs and returns the addresses of its tunnels.
func (s *Server) SandboxGetTunnels(ctx context.Context, req *pb.SandboxGetTunnelsRequest) (*pb.SandboxGetTunnelsResponse, error) {
	sb, err := s.findSandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	over, stop := timeoutChan(req.GetTimeout())
	defer stop()
	select {
	case <-sb.running:
	case <-sb.ended:
	case <-over:
		return pb.SandboxGetTunnelsResponse_builder{Result: endCause{pb.GenericResult_GENERIC_STATUS_TIMEOUT, "Sandbox has not started"}.toResult()}.Build(), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if sb.result != nil {
		return pb.SandboxGetTunnelsResponse_builder{Result: sb.result}.Build(), nil
	}
	var list []*pb.TunnelData
	for _, t := range sb.tunnels {
		list = append(list, t.tunnelData())
	}
	return pb.SandboxGetTunnelsResponse_builder{Result: successResult(), Tunnels: list}.Build(), nil
}
