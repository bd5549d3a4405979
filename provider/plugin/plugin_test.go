package plugin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/program"
	"github.com/seed46cd37a8/atoll/internal/secretref"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/local"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/provider/providertest"
	"github.com/seed46cd37a8/atoll/server/api/client"
)

// settings has the settings of the test's plugins.
type settings struct {
	Dir    string        `yaml:"dir"`
	Secret secretref.Ref `yaml:"secret"`
	Count  int           `yaml:"count"`
}

// TestMain lets the test program be the programs of plugins.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Argument {
		os.Exit(runPlugin(filepath.Base(os.Args[0])))
	}
	os.Exit(m.Run())
}

// runPlugin is the main function of the program of that name.
func runPlugin(name string) int {
	switch name {
	case "atoll-silent":
		fmt.Fprintln(os.Stderr, "out of luck")
		return 3
	case "atoll-chatty":
		fmt.Println("hello")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return 0
	case "atoll-future":
		fmt.Println(`{"protocol":7}`)
		_, _ = io.Copy(io.Discard, os.Stdin)
		return 0
	}
	if name == "atoll-backend" {
		return serveFakeBackend()
	}
	return ServeProvider("test", func(_ context.Context, r Request) (atoll.Provider, error) {
		var s settings
		if err := DecodeSettings(r.Settings, &s); err != nil {
			return nil, err
		}
		secret, _ := s.Secret.Reveal()
		switch {
		case s.Count < 0:
			return nil, atoll.Errorf("open", "test", atoll.ErrDenied, "count %d with secret of %d bytes", s.Count, len(secret))
		case name == "atoll-mock":
			return mock.New(mock.Options{Dir: s.Dir})
		}
		p, err := local.New(local.Options{Dir: s.Dir})
		return placed{atoll.ProviderLayer{Provider: p}}, err
	})
}

// A placed is a provider somewhere else.
type placed struct{ atoll.ProviderLayer }

func (placed) Place(context.Context) (string, error) { return "the moon", nil }

// options has a program of that name beside others, of a plugin with those settings.
func options(t *testing.T, name string, s settings) Options {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(exe, filepath.Join(dir, "atoll-"+name)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	encoded, err := EncodeSettings(s)
	if err != nil {
		t.Fatal(err)
	}
	return Options{Name: name, Settings: encoded}
}

func open(t *testing.T, opts Options) *Provider {
	t.Helper()
	p, err := Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// The faults of a provider's connection do not harm a provider in a program of its own.
func TestConformance(t *testing.T) {
	opts := options(t, "local", settings{})
	groups := []string{"exec", "output", "tty", "files", "caps", "watch"}
	if testing.Short() {
		groups = groups[:2]
	}
	providertest.Run(t, func(t *testing.T) atoll.Provider {
		encoded, err := EncodeSettings(settings{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		p, err := Open(t.Context(), Options{Name: opts.Name, Settings: encoded})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}, providertest.WireOnly(), providertest.Only(groups...))
}

// A program that is killed is started again, and what it was asked goes on.
func TestProgramIsKilled(t *testing.T) {
	dir := t.TempDir()
	p := open(t, options(t, "local", settings{Dir: dir}))
	sb, err := p.Create(t.Context(), &atoll.Spec{Name: "one"})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		before := p.program.run
		if err := before.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-before.done
		st, err := p.List(t.Context(), atoll.Filter{})
		if err != nil || len(st) != 1 || st[0].ID != sb.ID() {
			t.Fatalf("after its program was killed it lists %+v, %v", st, err)
		}
		if _, err := os.Stat(before.dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket of the killed program is left: %v", err)
		}
	}
}

// A program ends, and leaves no socket, when Atoll closes it or is killed.
func TestNothingIsLeft(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	p, err := Open(t.Context(), options(t, "local", settings{Dir: t.TempDir()}))
	if err != nil {
		t.Fatal(err)
	}
	pid := p.program.run.cmd.Process.Pid
	for range 2 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := p.program.run; err != nil {
		t.Errorf("process %d still runs", pid)
	}
	if _, err := p.List(t.Context(), atoll.Filter{}); !errors.Is(err, atoll.ErrUnavailable) {
		t.Errorf("List after Close: %v", err)
	}
	leaveAbruptly(t, options(t, "local", settings{Dir: t.TempDir()}))
	deadline := time.Now().Add(testenv.Scale(10 * time.Second))
	for {
		left, err := filepath.Glob(filepath.Join(tmp, "*"))
		if err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left in the directory for temporary files: %q", left)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// leaveAbruptly starts a plugin and closes its stdin, as the death of Atoll does.
func leaveAbruptly(t *testing.T, opts Options) {
	t.Helper()
	r, err := startProgram(t.Context(), NewProgram(opts).opts)
	if err != nil {
		t.Fatal(err)
	}
	r.stdin.Close()
	select {
	case <-r.done:
	case <-time.After(testenv.Scale(20 * time.Second)):
		t.Error("the program lives on after the end of its stdin")
		_ = r.cmd.Process.Kill()
		<-r.done
	}
	if _, err := os.Stat(r.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the program left its socket: %v", err)
	}
}

// A program whose log nobody reads any longer, because Atoll was killed, removes its socket.
func TestNobodyReadsTheLog(t *testing.T) {
	opts := options(t, "local", settings{Dir: t.TempDir()})
	path, err := program.Find(opts.Name)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "at") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command(path, Argument)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	log, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	log.Close()
	cmd.Stderr = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	fmt.Fprintf(stdin, `{"protocol":1,"debug":true,"socket":"%s/s","settings":%s}`+"\n", dir, opts.Settings)
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != `{"protocol":1}`+"\n" {
		t.Fatalf("it answers %q, %v", line, err)
	}
	c, err := client.New(t.Context(), client.Options{URL: "unix://" + dir + "/s"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.List(t.Context(), atoll.Filter{}); err != nil { // each request is logged
		t.Error(err)
	}
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ends with %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of its socket is left: %v", err)
	}
}

func TestPlace(t *testing.T) {
	opts := options(t, "local", settings{Dir: t.TempDir()})
	if place, err := open(t, opts).Place(t.Context()); place != "" || err != nil {
		t.Errorf("a place that nobody wants is %q, %v", place, err)
	}
	opts.Place = true
	if place, err := open(t, opts).Place(t.Context()); place != "the moon" || err != nil {
		t.Errorf("the place is %q, %v", place, err)
	}
	other := options(t, "mock", settings{Dir: t.TempDir()})
	other.Place = true
	if place, err := open(t, other).Place(t.Context()); place != "" || err != nil {
		t.Errorf("the place of a provider of this machine is %q, %v", place, err)
	}
}

// A program that does not work is refused in one sentence, and is ended.
func TestRefusals(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	unknown, _ := json.Marshal(map[string]any{"colour": "blue"})
	for name, tt := range map[string]struct {
		opts Options
		kind atoll.Kind
		want string
	}{
		"no program":       {Options{Name: "nothing"}, atoll.ErrUnavailable, "the program atoll-nothing is neither beside atoll nor in PATH: put atoll-nothing there"},
		"no file":          {Options{Name: "x", Path: "/no/such/file"}, atoll.ErrUnavailable, "/no/such/file"},
		"ends at once":     {options(t, "silent", settings{}), atoll.ErrUnavailable, "ended before it listened: exit status 3: out of luck"},
		"no JSON":          {options(t, "chatty", settings{}), atoll.ErrUnavailable, "instead of a line of JSON"},
		"another protocol": {options(t, "future", settings{}), atoll.ErrUnavailable, "version 7 of the protocol"},
		"its own error":    {options(t, "local", settings{Count: -1, Secret: secretref.New("hush")}), atoll.ErrDenied, "count -1 with secret of 4 bytes"},
		"unknown setting":  {Options{Name: "local", Settings: unknown}, atoll.ErrInternal, "unknown setting colour"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Open(t.Context(), tt.opts)
			if err == nil {
				p.Close()
				t.Fatal("it opened")
			}
			if atoll.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v (%s), want %q (%s)", err, atoll.KindOf(err), tt.want, tt.kind)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	opts := options(t, "local", settings{})
	opts.Path = "/bin/sleep" // "sleep plugin" ends, and says nothing
	if _, err := Open(ctx, opts); err == nil {
		t.Error("Open took sleep for a plugin")
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, "atoll-*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// A person who starts the program by hand learns what it is.
func TestByHand(t *testing.T) {
	testenv.Plugins(t, "modal")
	out, err := exec.Command("atoll-modal", "--help").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "a part of atoll, which starts it") {
		t.Errorf("%v: %s", err, out)
	}
}

// Records of a program keep their level and attributes; other lines are messages.
func TestLog(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	l := &lastLine{log: log}
	fmt.Fprint(l, "a line\n\n", `{"time":"2026-01-02T03:04:05Z","level":"WARN","msg":"take care","n":3,"err":"no"}`, "\n", `{"msg":"no level"}`, "\n", `{"level":"DEBUG","msg":"quiet"}`, "\npart")
	want := `level=INFO msg="a line"
level=WARN msg="take care" err=no n=3
level=INFO msg="{\"msg\":\"no level\"}"
`
	if out.String() != want {
		t.Errorf("logged\n%swant\n%s", out.String(), want)
	}
	if got := l.lastText(); got != "part" {
		t.Errorf("the last line is %q", got)
	}
}

// Programs that a plugin has started, and that have its output, delay nothing.
func TestProgramsOfAProgram(t *testing.T) {
	script := filepath.Join(t.TempDir(), "atoll-parent")
	text := "#!/bin/sh\nsleep 20 & echo $! >" + script + ".pid\necho '{\"protocol\":1,\"error\":{\"kind\":\"denied\",\"message\":\"not today\"}}'\n"
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), Options{Name: "parent", Path: script})
	if !errors.Is(err, atoll.ErrDenied) || !strings.Contains(err.Error(), "not today") {
		t.Errorf("Open: %v", err)
	}
	pid, err := os.ReadFile(script + ".pid")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("kill", strings.TrimSpace(string(pid))).CombinedOutput(); err != nil {
		t.Errorf("the program's own program had ended before Open did: %s", out)
	}
}

func TestSettings(t *testing.T) {
	t.Setenv("HUSH", "hush")
	var ref secretref.Ref
	if err := ref.UnmarshalText([]byte("env:HUSH")); err != nil {
		t.Fatal(err)
	}
	data, err := EncodeSettings(&settings{Dir: "/d", Secret: ref, Count: 3})
	if want := `{"count":3,"dir":"/d","secret":"hush"}`; err != nil || string(data) != want {
		t.Errorf("got %s, %v, want %s", data, err, want)
	}
	var got settings
	if err := DecodeSettings(data, &got); err != nil || got.Dir != "/d" || got.Count != 3 {
		t.Errorf("got %+v, %v", got, err)
	}
	if secret, err := got.Secret.Reveal(); secret != "hush" || err != nil {
		t.Errorf("the secret is %q, %v", secret, err)
	}
	if err := DecodeSettings(nil, &got); err != nil {
		t.Errorf("no settings: %v", err)
	}
	t.Setenv("HUSH", "")
	if _, err := EncodeSettings(&settings{Secret: ref}); err == nil || !strings.Contains(err.Error(), "secret: ") {
		t.Errorf("a secret that is not there: %v", err)
	}
	for _, bad := range []string{`[]`, `{"dir":1}`, `{"secret":{}}`, `{"nothing":1}`} {
		if err := DecodeSettings(json.RawMessage(bad), &got); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}
