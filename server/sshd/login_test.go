package sshd

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/server/auth"
)

func newMock(t *testing.T) atoll.Provider { return providers["mock"](t) }

func TestWhoHasNoKeyIsNotLetIn(t *testing.T) {
	r := newRig(t, newMock(t), nil)
	stranger := newSigner(t)
	var messages []string
	for _, user := range []string{"web", "nobody", r.sb.ID()} {
		for name, auth := range map[string]ssh.AuthMethod{
			"another key": ssh.PublicKeys(stranger),
			"password":    ssh.Password("web"),
			"questions":   ssh.KeyboardInteractive(func(string, string, []string, []bool) ([]string, error) { return nil, nil }),
		} {
			c, err := r.dialServer(user, auth)
			if err == nil {
				c.Close()
				t.Errorf("%s was let in with %s", user, name)
				continue
			}
			if name == "another key" {
				messages = append(messages, err.Error())
			}
		}
		if c, err := r.dialServer(user); err == nil {
			c.Close()
			t.Errorf("%s was let in with nothing", user)
		}
	}
	for _, m := range messages {
		if m != messages[0] {
			t.Errorf("strangers learn from %q and %q which sandboxes exist", m, messages[0])
		}
	}
	if log := r.log.String(); !strings.Contains(log, ssh.FingerprintSHA256(stranger.PublicKey())) {
		t.Errorf("the log does not tell who wanted to come in: %s", log)
	}
}

func TestKeysAreReadAtEveryLogin(t *testing.T) {
	r := newRig(t, newMock(t), nil)
	r.newClient(t, "web")
	r.authorizeLines(t, "# nobody\n")
	if c, err := r.dialServer("web", ssh.PublicKeys(r.signer)); err == nil {
		c.Close()
		t.Error("a key that was taken out is let in")
	}
	r.authorizeLines(t, "nonsense\n", r.keyLine(`command="true"`), r.keyLine("restrict"))
	r.newClient(t, "web")
	if log := r.log.String(); !strings.Contains(log, "line 1: not a public key") || !strings.Contains(log, `option \"command\" is not supported`) {
		t.Errorf("the log does not tell of the bad lines: %s", log)
	}
	if err := os.Chmod(r.keys, 0o622); err != nil {
		t.Fatal(err)
	}
	if c, err := r.dialServer("web", ssh.PublicKeys(r.signer)); err == nil {
		c.Close()
		t.Error("keys that anyone may change are believed")
	}
}

func TestKeyOptions(t *testing.T) {
	signer := newSigner(t)
	key := string(ssh.MarshalAuthorizedKey(signer.PublicKey()))
	all := grant{account: auth.Account{Name: "default", Role: "admin"}, pty: true, forward: true}
	with := func(change func(*grant)) grant { g := all; change(&g); return g }
	for _, c := range []struct {
		options string
		want    grant
		bad     string
	}{
		{"", all, ""},
		{"restrict", with(func(g *grant) { g.pty, g.forward = false, false }), ""},
		{"RESTRICT,pty", with(func(g *grant) { g.forward = false }), ""},
		{"pty,restrict", with(func(g *grant) { g.pty, g.forward = false, false }), ""},
		{"restrict,port-forwarding", with(func(g *grant) { g.pty = false }), ""},
		{"no-pty", with(func(g *grant) { g.pty = false }), ""},
		{"no-port-forwarding,no-agent-forwarding,no-X11-forwarding,no-user-rc", with(func(g *grant) { g.forward = false }), ""},
		{`account="ann"`, with(func(g *grant) { g.account.Name = "ann" }), ""},
		{`account="ann:user",no-pty`, with(func(g *grant) { g.account, g.pty = auth.Account{Name: "ann", Role: "user"}, false }), ""},
		{`account="ann:project:web+api"`, with(func(g *grant) {
			g.account = auth.Account{Name: "ann", Role: auth.RoleProject, Projects: []string{"web", "api"}}
		}), ""},
		{`account="ann:project"`, grant{}, "write it like"},
		{`account=ann`, with(func(g *grant) { g.account.Name = "ann" }), ""},
		{`account=""`, grant{}, "write it like"},
		{`account="a b"`, grant{}, "write it like"},
		{`account`, grant{}, "write it like"},
		{`restrict="no"`, grant{}, "takes no value"},
		{`from="10.0.0.0/8"`, grant{}, `option "from" is not supported`},
		{`command="echo \"hi\""`, grant{}, `option "command" is not supported`},
		{`expiry-time="20200101"`, grant{}, `option "expiry-time" is not supported`},
		{`permitopen="localhost:80"`, grant{}, "not supported"},
		{"cert-authority", grant{}, "not supported"},
		{"verify-required", grant{}, "not supported"},
		{"no-such-thing", grant{}, "not supported"},
	} {
		line := key
		if c.options != "" {
			line = c.options + " " + key
		}
		keys, problems := parseKeys([]byte("\n# a comment\n" + line))
		got, ok := keys[string(signer.PublicKey().Marshal())]
		err := errors.Join(problems...)
		if c.bad == "" && (!ok || err != nil || !reflect.DeepEqual(got, c.want)) {
			t.Errorf("%s: %+v, %v; want %+v", c.options, got, err, c.want)
		}
		if c.bad != "" && (ok || err == nil || !strings.Contains(err.Error(), c.bad) || !strings.Contains(err.Error(), "line 3")) {
			t.Errorf("%s: let in %v, %v; want %q of line 3", c.options, ok, err, c.bad)
		}
	}
}

func TestKeysWithoutTerminals(t *testing.T) {
	r := newRig(t, newMock(t), nil)
	r.authorizeLines(t, r.keyLine("restrict"))
	s := r.newSession(t, "web")
	if err := s.RequestPty("xterm", 24, 80, nil); err == nil {
		t.Error("a terminal was granted")
	}
	if out, err := s.Output("echo hi"); err != nil || string(out) != "hi\n" {
		t.Errorf("a command: %q, %v", out, err)
	}
}

// A witness is a provider that records the accounts for which sandboxes are looked up.
type witness struct {
	atoll.ProviderLayer
	seen chan auth.Account
}

func (w witness) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	w.seen <- auth.AccountFrom(ctx)
	return w.ProviderLayer.Get(ctx, id)
}

func TestAccounts(t *testing.T) {
	p, err := mock.New(mock.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan auth.Account, 100)
	r := newRig(t, witness{atoll.ProviderLayer{Provider: p}, seen}, nil)
	r.authorizeLines(t, r.keyLine(`account="ann:user"`))
	for len(seen) > 0 {
		<-seen
	}
	if _, _, err := r.runLine(t, "web", "true"); err != nil {
		t.Fatal(err)
	}
	if got, want := <-seen, (auth.Account{Name: "ann", Role: "user"}); !reflect.DeepEqual(got, want) {
		t.Errorf("called for %+v, want %+v", got, want)
	}
	if log := r.log.String(); !strings.Contains(log, "account=ann") || !strings.Contains(log, "key="+ssh.FingerprintSHA256(r.signer.PublicKey())) || strings.Contains(log, "true ") {
		t.Errorf("the log does not say who it was: %s", log)
	}
}

func TestNew(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("good", string(ssh.MarshalAuthorizedKey(newSigner(t).PublicKey())), 0o644)
	_, private, _ := ed25519.GenerateKey(nil)
	writeKey(t, filepath.Join(dir, "own"), private)
	for _, c := range []struct {
		name, keys, host string
		kind             error
		says             string
	}{
		{"no keys", filepath.Join(dir, "none"), filepath.Join(dir, "h"), atoll.ErrNotExist, "with the public keys that may log in"},
		{"a bad line", write("bad", "hello\n", 0o600), filepath.Join(dir, "h"), atoll.ErrInvalid, "line 1"},
		{"keys for all to change", write("open", "", 0o666), filepath.Join(dir, "h"), atoll.ErrDenied, "chmod 644"},
		{"a directory", dir, filepath.Join(dir, "h"), atoll.ErrInvalid, "not a regular file"},
		{"too much", write("long", strings.Repeat("#\n", maxKeys), 0o600), filepath.Join(dir, "h"), atoll.ErrInvalid, "longer"},
		{"a damaged host key", good, write("damaged", "-----BEGIN", 0o600), atoll.ErrInvalid, "damaged"},
		{"an empty host key", good, write("empty", "", 0o600), atoll.ErrInvalid, "damaged"},
		{"an open host key", good, write("readable", "x", 0o640), atoll.ErrDenied, "chmod 600"},
		{"no place for a host key", good, filepath.Join(dir, "no", "h"), atoll.ErrInternal, "no such file"},
		{"one's own host key", good, filepath.Join(dir, "own"), nil, ""},
	} {
		_, err := New(newMock(t), Options{AuthorizedKeys: c.keys, HostKey: c.host})
		if c.kind == nil && err != nil || c.kind != nil && (!errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v; want %v, %q", c.name, err, c.kind, c.says)
		}
	}
}

func TestHostKeyStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "host")
	var all sync.WaitGroup
	keys := make([]string, 16)
	for i := range keys {
		all.Go(func() {
			key, err := loadHostKey(path)
			if err != nil {
				t.Error(err)
				return
			}
			keys[i] = ssh.FingerprintSHA256(key.PublicKey())
		})
	}
	all.Wait()
	for _, k := range keys {
		if k == "" || k != keys[0] {
			t.Errorf("of those who started at once one has %s, another %s", k, keys[0])
		}
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", fi.Mode(), err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("%v is left", left)
	}
}

func TestLoginsAreBounded(t *testing.T) {
	grace := testenv.Scale(2 * time.Second) // enough time for three to connect
	r := newRig(t, newMock(t), func(s *Server) {
		s.loginGrace = grace
		s.logins = newLoginSlots(2, 8)
	})
	var silent []net.Conn
	begun := time.Now()
	for range 2 {
		conn, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		silent = append(silent, conn)
		if _, err := io.ReadFull(conn, make([]byte, 4)); err != nil { // SSH-: it has a slot
			t.Fatal(err)
		}
	}
	if c, err := r.dialServer("web", ssh.PublicKeys(r.signer)); err == nil {
		c.Close()
		if time.Since(begun) < grace {
			t.Error("one more login than there may be")
		}
	}
	for _, conn := range silent {
		_ = conn.SetReadDeadline(time.Now().Add(testenv.Scale(10 * time.Second)))
		if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a client that does not log in may stay for ever")
		}
	}
	eventually(t, "there is a place again", func() bool {
		c, err := r.dialServer("web", ssh.PublicKeys(r.signer))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// A host that does not log in must not lock out others.
func TestLoginsOfOtherHosts(t *testing.T) {
	slots := newLoginSlots(2, 5)
	at := func(text string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(text)) }
	var release []func()
	for _, tt := range []struct {
		from string
		ok   bool
	}{
		{"192.0.2.1:1", true}, {"192.0.2.1:2", true}, {"192.0.2.1:3", false}, {"[::ffff:192.0.2.1]:4", false},
		{"[2001:db8::1]:1", true}, {"[2001:db8::2]:1", true}, {"[2001:db8::3]:1", false},
		{"192.0.2.2:1", true}, {"[2001:db8:0:1::1]:1", false}, // of all
	} {
		r, ok := slots.reserveSlot(at(tt.from))
		if ok != tt.ok {
			t.Errorf("%s: %v, want %v", tt.from, ok, tt.ok)
		}
		if ok {
			release = append(release, r)
		}
	}
	for _, r := range release {
		r()
		r()
	}
	if slots.used != 0 || len(slots.byHost) != 0 {
		t.Errorf("%d logins of %v are left", slots.used, slots.byHost)
	}
}

func TestKeysThatAreTriedAreCounted(t *testing.T) {
	r := newRig(t, newMock(t), nil)
	var many []ssh.Signer
	for range maxTries {
		many = append(many, newSigner(t))
	}
	if c, err := r.dialServer("web", ssh.PublicKeys(append(many, r.signer)...)); err == nil {
		c.Close()
		t.Errorf("the key after %d others was let in", maxTries)
	}
}

// A vanished client keeps its connection open, and answers nothing.
func TestAClientThatVanishesIsNoticed(t *testing.T) {
	r := newRig(t, newMock(t), func(s *Server) { s.aliveEvery = max(time.Second, testenv.Scale(200*time.Millisecond)) })
	stalled := &stalling{gone: make(chan struct{})}
	nc, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	stalled.Conn = nc
	defer close(stalled.gone)
	defer nc.Close()
	cc, channels, requests, err := ssh.NewClientConn(stalled, r.addr, &ssh.ClientConfig{
		User: "web", Auth: []ssh.AuthMethod{ssh.PublicKeys(r.signer)}, HostKeyCallback: ssh.FixedHostKey(r.server.hostKey.PublicKey()),
	})
	if err != nil {
		t.Fatal(err)
	}
	c := ssh.NewClient(cc, channels, requests)
	defer c.Close()
	s := newSession(t, c)
	startOnTerminal(t, s, "sleep 1000", 24, 80)
	p := r.awaitProcess(t, "sleep 1000")
	stalled.mu.Lock()
	stalled.stopped = true
	stalled.mu.Unlock()
	if exit, err := p.Wait(t.Context()); err != nil || exit.Signal != atoll.SIGHUP {
		t.Errorf("ended with %v, %v; want SIGHUP", exit, err)
	}
}

// A stalling connection sends nothing more after it was stopped.
type stalling struct {
	net.Conn
	mu      sync.Mutex
	stopped bool
	gone    chan struct{}
}

func (s *stalling) Write(p []byte) (int, error) {
	s.mu.Lock()
	stopped := s.stopped
	s.mu.Unlock()
	if stopped {
		<-s.gone
		return 0, fmt.Errorf("gone")
	}
	return s.Conn.Write(p)
}
