package sshd

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/seed46cd37a8/atoll"
)

func TestCommands(t *testing.T) {
	forEachProvider(t, func(t *testing.T, r *rig) {
		for _, c := range []struct {
			line, stdout, stderr string
			code                 int
		}{
			{"echo hi", "hi\n", "", 0},
			{"echo 'a  b'; exit 7", "a  b\n", "", 7},
			{"exit 255", "", "", 255},
			{"nosuchthing", "", "not found", 127},
			{"", "", "", 0},
		} {
			stdout, stderr, err := r.runLine(t, "web", c.line)
			if stdout != c.stdout || !strings.Contains(stderr, c.stderr) || codeOf(err) != c.code {
				t.Errorf("%q: printed %q and %q, %v; want %q, %q and code %d", c.line, stdout, stderr, err, c.stdout, c.stderr, c.code)
			}
		}
	})
}

func TestUserNames(t *testing.T) {
	forEachProvider(t, func(t *testing.T, r *rig) {
		other, err := r.Create(t.Context(), &atoll.Spec{Name: "web", Project: "shop"})
		if err != nil {
			t.Fatal(err)
		}
		if err := atoll.WriteFile(t.Context(), other, "here", []byte("shop"), 0); err != nil {
			t.Fatal(err)
		}
		if err := atoll.WriteFile(t.Context(), r.sb, "here", []byte("default"), 0); err != nil {
			t.Fatal(err)
		}
		stopped, err := r.Create(t.Context(), &atoll.Spec{Name: "stopped", NoStart: true})
		if err != nil {
			t.Fatal(err)
		}
		id := r.sb.ID()
		hyphens := id[:8] + "-" + id[8:12] + "-" + id[12:16] + "-" + id[16:20] + "-" + id[20:]
		for _, c := range []struct {
			user, want, failure string
		}{
			{"web", "default", ""},
			{"default.web", "default", ""},
			{"shop.web", "shop", ""},
			{id, "default", ""},
			{hyphens, "default", ""},
			{other.ID(), "shop", ""},
			{"nobody", "", "atoll: get nobody: sandbox not found"},
			{"shop.nobody", "", "sandbox not found"},
			{"no project.web", "", "sandbox not found"},
			{"a.b.c", "", "sandbox not found"},
			{"\x1b[2J", "", "sandbox not found"},
			{"", "", "sandbox not found"},
			{"stopped", "", "sandbox is stopped"},
			{stopped.ID(), "", "sandbox is stopped"},
		} {
			stdout, stderr, err := r.runLine(t, c.user, "cat here")
			if stdout != c.want || c.failure == "" && err != nil {
				t.Errorf("%q: %q, %v; want %q", c.user, stdout, err, c.want)
			}
			if c.failure != "" && (codeOf(err) != 255 || !strings.Contains(stderr, c.failure) || strings.Contains(stderr, "\x1b")) {
				t.Errorf("%q: %q, %v; want code 255 and %q", c.user, stderr, err, c.failure)
			}
		}
		sc := r.newClient(t, "nobody")
		if _, err := sc.Dial("tcp", "localhost:80"); err == nil || !strings.Contains(err.Error(), "not found") {
			t.Errorf("a port of no sandbox: %v", err)
		}
	})
}

func TestStdinEndsAndOutputDrains(t *testing.T) {
	forEachProvider(t, func(t *testing.T, r *rig) {
		s := r.newSession(t, "web")
		in, err := s.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		s.Stdout = &out
		if err := s.Start("cat; echo done"); err != nil {
			t.Fatal(err)
		}
		data := bytes.Repeat([]byte("0123456789abcdef"), 256<<10) // more than all windows together
		if _, err := in.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := in.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.Wait(); err != nil {
			t.Fatal(err)
		}
		if want := string(data) + "done\n"; out.String() != want {
			t.Errorf("%d bytes came back of %d", out.Len(), len(want))
		}
	})
}

func TestStderrIsApart(t *testing.T) {
	r := newRig(t, providers["local"](t), nil)
	stdout, stderr, err := r.runLine(t, "web", "echo out; echo err >&2; exit 3")
	if stdout != "out\n" || stderr != "err\n" || codeOf(err) != 3 {
		t.Errorf("got %q, %q, %v", stdout, stderr, err)
	}
}

func TestEnvironment(t *testing.T) {
	forEachProvider(t, func(t *testing.T, r *rig) {
		s := r.newSession(t, "web")
		for name, want := range map[string]bool{
			"LANG": true, "LC_ALL": true, "LC_CTYPE": true, "TERM": true,
			"PATH": false, "LD_PRELOAD": false, "SHELL": false, "BASH_ENV": false, "LC_": false, "LC_x": false, "LC_A=B": false, "": false,
		} {
			if err := s.Setenv(name, "xyz"); (err == nil) != want {
				t.Errorf("%s: %v, want it accepted: %v", name, err, want)
			}
		}
		out, err := s.Output("env")
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range []string{"LANG=xyz", "LC_ALL=xyz", "LC_CTYPE=xyz", "TERM=xyz"} {
			if !strings.Contains("\n"+string(out), "\n"+kv+"\n") {
				t.Errorf("%s is not in the environment %q", kv, out)
			}
		}
		if strings.Count(string(out), "xyz") != 4 {
			t.Errorf("more was let in: %q", out)
		}
	})
}

// A screen records the output of a terminal.
type screen struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// startOnTerminal starts a shell, or line, on a terminal.
func startOnTerminal(t *testing.T, s *ssh.Session, line string, rows, cols int) (in io.WriteCloser, out *screen) {
	t.Helper()
	if err := s.RequestPty("vt220", rows, cols, ssh.TerminalModes{ssh.ECHO: 1}); err != nil {
		t.Fatal(err)
	}
	in, err := s.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out = &screen{}
	s.Stdout = out
	if line == "" {
		err = s.Shell()
	} else {
		err = s.Start(line)
	}
	if err != nil {
		t.Fatal(err)
	}
	return in, out
}

func TestTerminal(t *testing.T) {
	forEachProvider(t, func(t *testing.T, r *rig) {
		s := r.newSession(t, "web")
		in, out := startOnTerminal(t, s, "", 31, 97)
		say := func(line, want string) {
			t.Helper()
			fmt.Fprintf(in, "%s\n", line)
			eventually(t, fmt.Sprintf("%q shows %q: %q", line, want, out), func() bool { return strings.Contains(out.String(), want) })
		}
		say("stty size", "31 97")
		say("echo $TERM", "vt220")
		if err := s.WindowChange(50, 132); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the terminal is larger", func() bool {
			fmt.Fprintf(in, "stty size\n")
			time.Sleep(10 * time.Millisecond)
			return strings.Contains(out.String(), "50 132")
		})
		if err := s.RequestPty("vt220", 1, 1, nil); err == nil {
			t.Error("a second terminal was granted")
		}
		fmt.Fprintf(in, "exit 5\n")
		if err := s.Wait(); codeOf(err) != 5 {
			t.Errorf("Wait = %v, want code 5", err)
		}
	})
}

func TestTerminalInputEnds(t *testing.T) {
	forEachProvider(t, func(t *testing.T, r *rig) {
		s := r.newSession(t, "web")
		in, out := startOnTerminal(t, s, "cat", 0, 0)
		fmt.Fprintf(in, "hello")
		in.Close()
		if err := s.Wait(); err != nil {
			t.Errorf("Wait = %v, want the end", err)
		}
		if !strings.Contains(out.String(), "hello") {
			t.Errorf("it shows %q", out)
		}
	})
}

func TestSignals(t *testing.T) {
	forEachProvider(t, func(t *testing.T, r *rig) {
		s := r.newSession(t, "web")
		if err := s.Start("sleep 60"); err != nil {
			t.Fatal(err)
		}
		r.awaitProcess(t, "sleep 60")
		if err := s.Signal(ssh.SIGTERM); err != nil {
			t.Fatal(err)
		}
		err := s.Wait()
		exit, ok := err.(*ssh.ExitError)
		if !ok || exit.Signal() != "TERM" {
			t.Errorf("Wait = %v, want it ended by TERM", err)
		}
	})
}

func TestSessionsShareAConnection(t *testing.T) {
	forEachProvider(t, func(t *testing.T, r *rig) {
		c := r.newClient(t, "web")
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				s, err := c.NewSession()
				if err != nil {
					t.Errorf("session %d: %v", i, err)
					return
				}
				defer s.Close()
				out, err := s.Output(fmt.Sprintf("echo %d", i))
				if err != nil || string(out) != fmt.Sprintf("%d\n", i) {
					t.Errorf("session %d: %q, %v", i, out, err)
				}
			})
		}
		all.Wait()
		var held []*ssh.Session
		for range maxChannels {
			eventually(t, "a session that is closed leaves its place", func() bool {
				s, err := c.NewSession()
				if err == nil {
					held = append(held, s)
				}
				return err == nil
			})
		}
		if _, err := c.NewSession(); err == nil || !strings.Contains(err.Error(), "too many channels") {
			t.Errorf("one more than %d sessions: %v", maxChannels, err)
		}
		held[0].Close()
		eventually(t, "there is room again", func() bool {
			s, err := c.NewSession()
			if err == nil {
				s.Close()
			}
			return err == nil
		})
	})
}

func TestAClientThatGoesHangsUp(t *testing.T) {
	forEachProvider(t, func(t *testing.T, r *rig) {
		for name, leave := range map[string]func(*ssh.Client, *ssh.Session){
			"connection": func(c *ssh.Client, _ *ssh.Session) { c.Close() },
			"session":    func(_ *ssh.Client, s *ssh.Session) { s.Close() },
		} {
			c := r.newClient(t, "web")
			s := newSession(t, c)
			startOnTerminal(t, s, "sleep 1000", 24, 80)
			p := r.awaitProcess(t, "sleep 1000")
			leave(c, s)
			if exit, err := p.Wait(t.Context()); err != nil || exit.Signal != atoll.SIGHUP {
				t.Errorf("%s: ended with %v, %v; want SIGHUP", name, exit, err)
			}
		}
	})
}

func TestAClientThatGoesEndsInputAndBreaksPipes(t *testing.T) {
	r := newRig(t, providers["local"](t), nil)
	for line, want := range map[string]string{
		"cat":                      "exited with code 0", // its stdin ended
		"while :; do echo x; done": "killed by SIGPIPE",
		"trap '' PIPE; cat; echo x; echo y; exit 4": "exited with code 4",
	} {
		c := r.newClient(t, "web")
		s := newSession(t, c)
		if _, err := s.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := s.Start(line); err != nil {
			t.Fatal(err)
		}
		p := r.awaitProcess(t, line)
		c.Close()
		if exit, err := p.Wait(t.Context()); err != nil || exit.String() != want {
			t.Errorf("%q: %v, %v; want %s", line, exit, err, want)
		}
	}
}

func TestServerThatClosesSaysSo(t *testing.T) {
	forEachProvider(t, func(t *testing.T, r *rig) {
		s := r.newSession(t, "web")
		var errs bytes.Buffer
		s.Stderr = &errs
		startOnTerminal(t, s, "sleep 1000", 24, 80)
		p := r.awaitProcess(t, "sleep 1000")
		r.stop()
		if err := s.Wait(); codeOf(err) != 255 || !strings.Contains(errs.String(), "the server is closing\r\n") {
			t.Errorf("Wait = %v, and %q", err, errs.String())
		}
		if exit, err := p.Wait(t.Context()); err != nil || exit.Signal != atoll.SIGHUP {
			t.Errorf("ended with %v, %v; want SIGHUP", exit, err)
		}
	})
}

func TestOtherThingsAreRefused(t *testing.T) {
	r := newRig(t, providers["mock"](t), nil)
	c := r.newClient(t, "web")
	if ok, _, err := c.SendRequest("tcpip-forward", true, ssh.Marshal(struct {
		Host string
		Port uint32
	}{"", 0})); ok || err != nil {
		t.Errorf("tcpip-forward: %v, %v", ok, err)
	}
	if ok, _, err := c.SendRequest("keepalive@openssh.com", true, nil); ok || err != nil {
		t.Errorf("keepalive: %v, %v; want a refusal, which is an answer", ok, err)
	}
	for kind, reason := range map[string]string{"x11": "not supported", "direct-streamlocal@openssh.com": "listen on a port", "tun@openssh.com": "not supported"} {
		if _, _, err := c.OpenChannel(kind, nil); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("a channel %s: %v, want the reason %q", kind, err, reason)
		}
	}
	s := newSession(t, c)
	var said bytes.Buffer
	s.Stderr = &said
	for _, kind := range []string{"auth-agent-req@openssh.com", "x11-req", "subsystem", "window-change", "pty-req", "exec", "env", "signal"} {
		for _, payload := range [][]byte{nil, {0}, {0, 0, 0, 9, 'x'}, bytes.Repeat([]byte{0xff}, 64)} {
			if ok, err := s.SendRequest(kind, true, payload); ok || err != nil {
				t.Errorf("%s with %x: %v, %v", kind, payload, ok, err)
			}
		}
	}
	if out, err := s.Output("echo still here"); err != nil || string(out) != "still here\n" {
		t.Errorf("after all that: %q, %v", out, err)
	}
	for _, option := range []string{"(-A)", "(-X)"} {
		if strings.Count(said.String(), option) != 1 {
			t.Errorf("the server says %q, want one line with %s", said.String(), option)
		}
	}
}

func TestForward(t *testing.T) {
	forEachProvider(t, func(t *testing.T, r *rig) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() { // echoes its input after that has ended
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				data, _ := io.ReadAll(conn)
				_, _ = conn.Write(data)
				conn.Close()
			}
		}()
		port := l.Addr().(*net.TCPAddr).Port
		c := r.newClient(t, "web")
		for _, host := range []string{"localhost", "127.0.0.1", "[::1]"} {
			conn, err := c.Dial("tcp", fmt.Sprintf("%s:%d", host, port))
			if err != nil {
				t.Fatal(err)
			}
			data := bytes.Repeat([]byte("ping"), 100<<10)
			go func() {
				_, _ = conn.Write(data)
				_ = conn.(interface{ CloseWrite() error }).CloseWrite()
			}()
			if back, err := io.ReadAll(conn); err != nil || !bytes.Equal(back, data) {
				t.Errorf("%s: %d bytes came back of %d, %v", host, len(back), len(data), err)
			}
			conn.Close()
		}
		l.Close()
		if _, err := c.Dial("tcp", fmt.Sprintf("localhost:%d", port)); err == nil || !strings.Contains(err.Error(), "atoll: ") {
			t.Errorf("a port that nobody listens on: %v", err)
		}
		for _, addr := range []string{"127.0.0.2:80", "example.com:80", "169.254.169.254:80", "0.0.0.0:80", "localhost:0", "localhost.:80"} {
			_, err := c.Dial("tcp", addr)
			if refused, ok := err.(*ssh.OpenChannelError); !ok || refused.Reason != ssh.Prohibited {
				t.Errorf("%s: %v, want it prohibited", addr, err)
			}
		}
		r.authorizeLines(t, r.keyLine("restrict"))
		if _, err := r.newClient(t, "web").Dial("tcp", fmt.Sprintf("localhost:%d", port)); err == nil || !strings.Contains(err.Error(), "may not forward") {
			t.Errorf("with a key that may not: %v", err)
		}
	})
}
