//go:build linux

package docker_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/docker"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// tlsAddress is the address of the test engine with TLS, in its own network namespace.
const tlsAddress = "127.0.0.1:2376"

// makeCertificates writes the certificates of an authority, the engine and a client to dir, with
// docker's file names.
func makeCertificates(dir string) error {
	authority := &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	key, err := certify(dir, "ca", authority, authority, nil)
	if err != nil {
		return err
	}
	for name, usage := range map[string]x509.ExtKeyUsage{"server": x509.ExtKeyUsageServerAuth, "": x509.ExtKeyUsageClientAuth} {
		leaf := &x509.Certificate{
			Subject: pkix.Name{CommonName: "leaf " + name}, ExtKeyUsage: []x509.ExtKeyUsage{usage}, KeyUsage: x509.KeyUsageDigitalSignature,
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		}
		if _, err := certify(dir, name, leaf, authority, key); err != nil {
			return err
		}
	}
	return nil
}

// certify creates a key and a certificate, signed with by; nil means with its own key. It writes
// "ca" to ca.pem, others to NAME-cert.pem and NAME-key.pem.
func certify(dir, name string, cert, parent *x509.Certificate, by *ecdsa.PrivateKey) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if by == nil {
		by = key
	}
	cert.SerialNumber = big.NewInt(time.Now().UnixNano())
	cert.NotBefore, cert.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, by)
	if err != nil {
		return nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	names := map[string]*pem.Block{
		strings.TrimPrefix(name+"-cert.pem", "-"): {Type: "CERTIFICATE", Bytes: der},
		strings.TrimPrefix(name+"-key.pem", "-"):  {Type: "PRIVATE KEY", Bytes: secret},
	}
	if name == "ca" {
		names = map[string]*pem.Block{"ca.pem": {Type: "CERTIFICATE", Bytes: der}}
	}
	for file, block := range names {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			return nil, err
		}
	}
	return key, nil
}

// dialTLS connects to the test engine from inside its network namespace.
func dialTLS(ctx context.Context) (conn net.Conn, err error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(engine.Dir, "cert.pem"), filepath.Join(engine.Dir, "key.pem"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(filepath.Join(engine.Dir, "ca.pem"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	d := tls.Dialer{Config: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots}}
	err = runInEngine(func() (err error) {
		conn, err = d.DialContext(ctx, "tcp", tlsAddress)
		return err
	})
	return conn, err
}

// useTLS makes a provider reach the engine with a dialer, over TLS.
func useTLS(opts *docker.Options) { opts.Host, opts.Dial = "", dialTLS }

// TestConformanceTLS runs the promises that depend on the connection to the engine: streams that
// end in one direction first. TestEngineConnections tests the other connections.
func TestConformanceTLS(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: TestEngineConnections tests most of it")
	}
	needEngine(t)
	providertest.Run(t, func(t *testing.T) atoll.Provider { return open(t, useTLS) },
		providertest.Only("exec"), providertest.WireOnly(), providertest.Slow(3), sharedGroups, providertest.Leaks(heldObjects))
}

// startTunnel forwards a port of this machine to the engine's TLS address, and returns its
// address.
func startTunnel(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			var far net.Conn
			if err := runInEngine(func() (err error) { far, err = net.Dial("tcp", tlsAddress); return err }); err != nil {
				near.Close()
				continue
			}
			pass := func(to, from net.Conn) {
				_, _ = io.Copy(to, from)
				_ = to.(*net.TCPConn).CloseWrite()
			}
			go pass(near, far)
			go pass(far, near)
		}
	}()
	return "tcp://" + l.Addr().String()
}

// Sandboxes work over every kind of connection to the engine, with and without a guest.
func TestEngineConnections(t *testing.T) {
	needEngine(t)
	for _, tt := range []struct {
		name  string
		reach func(t *testing.T, opts *docker.Options)
	}{
		{"a dialer to its socket", func(_ *testing.T, opts *docker.Options) {
			path := strings.TrimPrefix(opts.Host, "unix://")
			opts.Host = ""
			opts.Dial = func(ctx context.Context) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "unix", path)
			}
		}},
		{"a dialer over TLS", func(_ *testing.T, opts *docker.Options) { useTLS(opts) }},
		{"an address, with certificates of the environment", func(t *testing.T, opts *docker.Options) {
			opts.Host = startTunnel(t)
			t.Setenv("DOCKER_TLS_VERIFY", "1")
			t.Setenv("DOCKER_CERT_PATH", engine.Dir)
		}},
		{"the environment", func(t *testing.T, opts *docker.Options) {
			opts.Host = ""
			t.Setenv("DOCKER_HOST", startTunnel(t))
			t.Setenv("DOCKER_TLS_VERIFY", "1")
			t.Setenv("DOCKER_CERT_PATH", engine.Dir)
		}},
		{"a context with certificates", func(t *testing.T, opts *docker.Options) {
			opts.Host = ""
			t.Setenv("DOCKER_HOST", "")
			t.Setenv("DOCKER_CONFIG", writeContext(t, "far", startTunnel(t)))
			t.Setenv("DOCKER_CONTEXT", "far")
		}},
	} {
		for _, mode := range []struct {
			name   string
			change func(*docker.Options)
		}{{"guest", func(*docker.Options) {}}, {"plain", withoutGuest}} {
			t.Run(tt.name+", "+mode.name, func(t *testing.T) {
				p := open(t, mode.change, func(opts *docker.Options) { tt.reach(t, opts) })
				checkWorks(t, p)
				if err := p.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
		}
	}
}

// checkWorks creates a sandbox, runs commands in it, and removes it.
func checkWorks(t *testing.T, p atoll.Provider) {
	t.Helper()
	if probe := atoll.ProbeProvider(t.Context(), p); !probe.OK {
		t.Fatalf("Probe: %+v", probe)
	}
	sb, err := p.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := sb.Remove(context.Background(), atoll.RemoveVolumes()); err != nil {
			t.Errorf("Remove: %v", err)
		}
	}()
	checkCommands(t, sb)
}

// checkCommands runs a command that reads its stdin to the end, and one with a terminal.
func checkCommands(t *testing.T, sb atoll.Sandbox) {
	t.Helper()
	text := strings.Repeat("there and back\n", 10000)
	out, err := atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{"cat"}, Stdin: strings.NewReader(text)})
	if err != nil || string(out) != text {
		t.Errorf("cat printed %d bytes, %v; want %d", len(out), err, len(text))
	}
	out, err = atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{"stty", "size"}, TTY: &atoll.Size{Rows: 33, Cols: 111}})
	if err != nil || string(out) != "33 111\r\n" {
		t.Errorf("stty size printed %q, %v", out, err)
	}
}

// writeContext writes a docker configuration with a context that reaches the test engine, and
// returns its directory.
func writeContext(t *testing.T, name, host string) string {
	t.Helper()
	dir := t.TempDir()
	sum := sha256.Sum256([]byte(name))
	key := hex.EncodeToString(sum[:])
	files := map[string][]byte{
		"contexts/meta/" + key + "/meta.json": fmt.Appendf(nil, `{"Name":%q,"Endpoints":{"docker":{"Host":%q}}}`, name, host),
	}
	for _, file := range []string{"ca.pem", "cert.pem", "key.pem"} {
		data, err := os.ReadFile(filepath.Join(engine.Dir, file))
		if err != nil {
			t.Fatal(err)
		}
		files["contexts/tls/"+key+"/docker/"+file] = data
	}
	for file, data := range files {
		file = filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
