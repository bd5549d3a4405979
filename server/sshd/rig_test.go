package sshd

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/local"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

// providers are the providers under test.
var providers = map[string]func(t *testing.T) atoll.Provider{
	"local": func(t *testing.T) atoll.Provider {
		p, err := local.New(local.Options{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		return p
	},
	"mock": func(t *testing.T) atoll.Provider {
		p, err := mock.New(mock.Options{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		return p
	},
}

// forEachProvider runs test over each provider.
func forEachProvider(t *testing.T, test func(t *testing.T, r *rig)) {
	for name, open := range providers {
		t.Run(name, func(t *testing.T) { test(t, newRig(t, open(t), nil)) })
	}
}

// A rig is a server with one sandbox named web, and a key that may log in.
type rig struct {
	atoll.Provider
	server *Server
	addr   string
	sb     atoll.Sandbox
	keys   string // the file of authorized keys
	signer ssh.Signer
	log    *logBuffer
	stop   func() // stops the server, and waits for its end
}

// newRig serves p, which it closes. change may change the server before it serves.
func newRig(t *testing.T, p atoll.Provider, change func(s *Server)) *rig {
	t.Helper()
	t.Cleanup(func() { p.Close() })
	dir := t.TempDir()
	r := &rig{Provider: p, keys: filepath.Join(dir, "keys"), signer: newSigner(t), log: &logBuffer{}}
	var err error
	if r.sb, err = p.Create(t.Context(), &atoll.Spec{Name: "web"}); err != nil {
		t.Fatal(err)
	}
	r.authorizeLines(t, r.keyLine(""))
	r.server, err = New(p, Options{
		AuthorizedKeys: r.keys, HostKey: filepath.Join(dir, "host"),
		Log: slog.New(slog.NewTextHandler(r.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.server.refusalTime = testenv.Scale(refusalTime)
	if change != nil {
		change(r.server)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(ctx, l) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-served:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(testenv.Scale(20 * time.Second)):
			t.Errorf("Serve does not end")
		}
	})
	t.Cleanup(r.stop)
	return r
}

// keyLine returns the line of the rig's key in a file of authorized keys.
func (r *rig) keyLine(options string) string {
	line := string(ssh.MarshalAuthorizedKey(r.signer.PublicKey()))
	if options != "" {
		line = options + " " + line
	}
	return line
}

func (r *rig) authorizeLines(t *testing.T, lines ...string) {
	t.Helper()
	if err := os.WriteFile(r.keys, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
}

func newSigner(t *testing.T) ssh.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// dialServer logs in.
func (r *rig) dialServer(user string, auth ...ssh.AuthMethod) (*ssh.Client, error) {
	return ssh.Dial("tcp", r.addr, &ssh.ClientConfig{
		User: user, Auth: auth, HostKeyCallback: ssh.FixedHostKey(r.server.hostKey.PublicKey()), Timeout: testenv.Scale(10 * time.Second),
	})
}

// newClient logs in as user, with the rig's key, until the test ends.
func (r *rig) newClient(t *testing.T, user string) *ssh.Client {
	t.Helper()
	c, err := r.dialServer(user, ssh.PublicKeys(r.signer))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func (r *rig) newSession(t *testing.T, user string) *ssh.Session {
	t.Helper()
	return newSession(t, r.newClient(t, user))
}

func newSession(t *testing.T, c *ssh.Client) *ssh.Session {
	t.Helper()
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// runLine runs line in a session of its own.
func (r *rig) runLine(t *testing.T, user, line string) (stdout, stderr string, err error) {
	t.Helper()
	s := r.newSession(t, user)
	var out, errs bytes.Buffer
	s.Stdout, s.Stderr = &out, &errs
	err = s.Run(line)
	return out.String(), errs.String(), err
}

// codeOf returns the exit code in err; -1 if there is none.
func codeOf(err error) int {
	if err == nil {
		return 0
	}
	if exit, ok := errors.AsType[*ssh.ExitError](err); ok {
		return exit.ExitStatus()
	}
	return -1
}

// eventually polls until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testenv.Scale(30 * time.Second)); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("it never came about that %s", what)
}

// awaitProcess waits until line runs.
func (r *rig) awaitProcess(t *testing.T, line string) (p atoll.Process) {
	t.Helper()
	eventually(t, line+" runs", func() bool {
		all, err := atoll.Processes(t.Context(), r.sb)
		if err != nil {
			t.Fatal(err)
		}
		for _, st := range all {
			if st.Exit == nil && st.Args[len(st.Args)-1] == line {
				p, err = r.sb.Process(t.Context(), st.ID)
				return err == nil
			}
		}
		return false
	})
	return p
}

// writeKey writes a private key in ssh's format.
func writeKey(t *testing.T, path string, key ed25519.PrivateKey) {
	t.Helper()
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A logBuffer holds log output.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
