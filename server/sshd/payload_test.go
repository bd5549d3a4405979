package sshd

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

func TestParsePTY(t *testing.T) {
	type payload struct {
		Term                      string
		Cols, Rows, Width, Height uint32
		Modes                     string
	}
	for _, c := range []struct {
		payload any
		term    string
		size    atoll.Size
		bad     bool
	}{
		{payload{"xterm", 80, 24, 0, 0, "\x00"}, "xterm", atoll.Size{Rows: 24, Cols: 80}, false},
		{payload{"", 0, 0, 640, 480, ""}, "", atoll.Size{Rows: 24, Cols: 80}, false},
		{payload{"x", 1, 1, 0, 0, "any\x00thing"}, "x", atoll.Size{Rows: 1, Cols: 1}, false},
		{payload{"x", 1 << 31, 1 << 16, 0, 0, ""}, "x", atoll.Size{Rows: 65535, Cols: 65535}, false},
		{payload{"a\x00b", 1, 1, 0, 0, ""}, "", atoll.Size{}, true},
		{payload{"\xff", 1, 1, 0, 0, ""}, "", atoll.Size{}, true},
		{payload{strings.Repeat("x", maxEnv+1), 1, 1, 0, 0, ""}, "", atoll.Size{}, true},
		{struct{ Term string }{"xterm"}, "", atoll.Size{}, true},
	} {
		term, size, err := parsePTY(ssh.Marshal(c.payload))
		if term != c.term || size != c.size || (err != nil) != c.bad {
			t.Errorf("%+v: %q, %v, %v", c.payload, term, size, err)
		}
	}
}

func TestParseForward(t *testing.T) {
	type payload struct {
		Host       string
		Port       uint32
		Origin     string
		OriginPort uint32
	}
	for _, c := range []struct {
		host string
		port uint32
		want int // 0 if refused
	}{
		{"localhost", 80, 80}, {"127.0.0.1", 65535, 65535}, {"::1", 1, 1},
		{"localhost", 0, 0}, {"localhost", 65536, 0}, {"localhost", 1 << 31, 0},
		{"LOCALHOST", 80, 0}, {"localhost.", 80, 0}, {"127.1", 80, 0}, {"0.0.0.0", 80, 0}, {"::", 80, 0}, {"::ffff:127.0.0.1", 80, 0},
		{"10.0.0.1", 80, 0}, {"", 80, 0}, {"localhost\x00.example", 80, 0},
	} {
		port, err := parseForward(ssh.Marshal(payload{c.host, c.port, "::1", 5}))
		if port != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("%q %d: %d, %v; want %d", c.host, c.port, port, err, c.want)
		}
	}
}

func TestParseSignal(t *testing.T) {
	for name, want := range map[string]atoll.Signal{
		"TERM": atoll.SIGTERM, "HUP": atoll.SIGHUP, "KILL": atoll.SIGKILL, "USR1": atoll.SIGUSR1, "USR2": atoll.SIGUSR2,
		"9": 0, "12": 0, "": 0, "SIGTERM": 0, "term": 0, "NOPE": 0, "sig@example.com": 0,
	} {
		if got, err := parseSignal(ssh.Marshal(struct{ Name string }{name})); got != want || (err != nil) != (want == 0) {
			t.Errorf("%q: %v, %v; want %v", name, got, err, want)
		}
	}
}

func TestExitMessage(t *testing.T) {
	for _, c := range []struct {
		exit    atoll.Exit
		kind    string
		payload string
	}{
		{atoll.Exit{Code: 3}, "exit-status", "\x00\x00\x00\x03"},
		{atoll.Exit{Code: 137, Signal: atoll.SIGKILL, Reason: "out of memory"}, "exit-signal", "\x00\x00\x00\x04KILL\x00\x00\x00\x00\x0dout of memory\x00\x00\x00\x00"},
		{atoll.Exit{Code: 168, Signal: 40}, "exit-status", "\x00\x00\x00\xa8"},
	} {
		if kind, payload := exitMessage(c.exit); kind != c.kind || string(payload) != c.payload {
			t.Errorf("%v: %s %q, want %s %q", c.exit, kind, payload, c.kind, c.payload)
		}
	}
}

// FuzzPayloads feeds every parser with payloads of clients, and checks the accepted
// ones.
func FuzzPayloads(f *testing.F) {
	for _, seed := range []any{
		struct{ S string }{"TERM"},
		struct{ Name, Value string }{"LC_ALL", "C"},
		struct{ Cols, Rows, Width, Height uint32 }{80, 24, 0, 0},
		struct {
			Term                      string
			Cols, Rows, Width, Height uint32
			Modes                     string
		}{"xterm", 80, 24, 0, 0, "\x00"},
		struct {
			Host       string
			Port       uint32
			Origin     string
			OriginPort uint32
		}{"localhost", 80, "::1", 5},
	} {
		f.Add(ssh.Marshal(seed))
		f.Add(ssh.Marshal(seed)[1:])
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		if term, size, err := parsePTY(payload); err == nil && (size.Rows == 0 || size.Cols == 0 || !isPlain(term, maxEnv)) {
			t.Errorf("a terminal %q of %v", term, size)
		}
		if size, err := parseResize(payload); err == nil && (size.Rows == 0 || size.Cols == 0) {
			t.Errorf("a size %v", size)
		}
		if kv, err := parseEnv(payload); err == nil {
			name, _, _ := strings.Cut(kv, "=")
			if !allowedEnv(name) || !isPlain(kv, 2*maxEnv+1) {
				t.Errorf("a variable %q", kv)
			}
		}
		if sig, err := parseSignal(payload); err == nil && (sig < 1 || sig > 64) {
			t.Errorf("a signal %d", sig)
		}
		if port, err := parseForward(payload); err == nil && (port < 1 || port > 65535) {
			t.Errorf("a port %d", port)
		}
		_, _ = parseCommand(payload)
		_, _ = parseSubsystem(payload)
	})
}

// FuzzKeys feeds files of authorized keys: an accepted line has only known options.
func FuzzKeys(f *testing.F) {
	const key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGkG0Jg8T0ZbU7e5jKfYJf5oQ2nDqk3mCz1k9Z6W8o7x me"
	for _, line := range []string{key, "restrict " + key, `command="x" ` + key, `account="a:b",pty ` + key, `from="*",restrict ` + key, "# " + key} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		keys, _ := parseKeys(data)
		for _, g := range keys {
			if !atoll.ValidName(g.account.Name) || !atoll.ValidName(g.account.Role) {
				t.Errorf("an account %+v", g.account)
			}
		}
		if len(keys) > 0 && (bytes.Contains(data, []byte("command=")) && bytes.Count(data, []byte("\n")) == 0 && bytes.HasPrefix(data, []byte("command="))) {
			t.Errorf("%q lets somebody in", data)
		}
	})
}

// FuzzSFTP feeds the file server with any packets.
func FuzzSFTP(f *testing.F) {
	packet := func(kind byte, payload string) string {
		n := len(payload) + 1
		return string([]byte{0, 0, byte(n >> 8), byte(n), kind}) + payload
	}
	hello := packet(1, "\x00\x00\x00\x03")
	f.Add([]byte(hello + packet(16, "\x00\x00\x00\x01\x00\x00\x00\x01.")))
	f.Add([]byte(hello + packet(3, "\x00\x00\x00\x01\x00\x00\x00\x01f\x00\x00\x00\x1a\x00\x00\x00\x04\x00\x00\x01\xa4") +
		packet(6, "\x00\x00\x00\x02\x00\x00\x00\x011\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01x") +
		packet(10, "\x00\x00\x00\x03\x00\x00\x00\x011\x00\x00\x00\x0d") + packet(4, "\x00\x00\x00\x04\x00\x00\x00\x011")))
	f.Add([]byte(hello + packet(3, "\x00\x00\x00\x01\x00\x00\x00\x01f\x00\x00\x00\x1a\x00\x00\x00\x04\x00\x00\x01\xa4") +
		packet(6, "\x00\x00\x00\x02\x00\x00\x00\x011\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01x") + packet(10, "\x00\x00")))
	f.Add([]byte(hello + packet(11, "\x00\x00\x00\x01\x00\x00\x00\x01.") + packet(12, "\x00\x00\x00\x02\x00\x00\x00\x011")))
	f.Add([]byte(hello + packet(200, "\x00\x00\x00\x01\x00\x00\x00\x18posix-rename@openssh.com\x00\x00\x00\x01a\x00\x00\x00\x01b")))
	p, err := mock.New(mock.Options{Dir: f.TempDir()})
	if err != nil {
		f.Fatal(err)
	}
	defer p.Close()
	sb, err := p.Create(f.Context(), &atoll.Spec{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var work sync.WaitGroup
		defer work.Wait()
		fs := &fileServer{ctx: t.Context(), fs: atoll.Files(sb), home: "/work", maxUpload: 1 << 20, work: &work, handles: map[string]handle{}}
		_ = fs.serveClient(duplex{bytes.NewReader(data)}) // fails for most data
		if len(fs.handles) != 0 {
			t.Errorf("%d handles are held", len(fs.handles))
		}
	})
}

// A duplex reads from Reader, and discards writes.
type duplex struct{ io.Reader }

func (duplex) Write(p []byte) (int, error) { return len(p), nil }
