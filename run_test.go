package atoll

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeSandbox is a Sandbox whose commands are functions.
type fakeSandbox struct {
	Sandbox
	id, name, project string
	run               func(cmd *Command, killed <-chan struct{}) (Exit, error)

	removed, volumesRemoved bool
	execs                   []*Command
}

func (f *fakeSandbox) ID() string { return f.id }

func (f *fakeSandbox) Remove(_ context.Context, opts ...RemoveOption) error {
	f.removed, f.volumesRemoved = true, ApplyRemoveOptions(opts...).Volumes
	return nil
}

func (f *fakeSandbox) Exec(ctx context.Context, cmd *Command) (Process, error) {
	f.execs = append(f.execs, cmd)
	if strings.HasPrefix(cmd.Args[0], "/no") {
		return nil, E("exec", f.id, ErrCommandNotFound, nil)
	}
	p := &fakeProcess{done: make(chan struct{}), killed: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.exit, p.err = f.run(cmd, p.killed)
	}()
	return p, nil
}

type fakeProcess struct {
	Process
	done, killed chan struct{}
	kill         sync.Once
	exit         Exit
	err          error
}

func (p *fakeProcess) ID() string { return "p" }

func (p *fakeProcess) Wait(ctx context.Context) (Exit, error) {
	select {
	case <-p.done:
		return p.exit, p.err
	case <-ctx.Done():
		return Exit{}, ctx.Err()
	}
}

func (p *fakeProcess) Signal(_ context.Context, sig Signal) error {
	if sig == SIGKILL {
		p.kill.Do(func() { close(p.killed) })
	}
	return nil
}

// printOutput returns a command that prints on both streams and exits.
func printOutput(stdout, stderr string, exit Exit) func(*Command, <-chan struct{}) (Exit, error) {
	return func(cmd *Command, _ <-chan struct{}) (Exit, error) {
		for w, text := range map[io.Writer]string{cmd.Stdout: stdout, cmd.Stderr: stderr} {
			if w != nil {
				io.WriteString(w, text)
			}
		}
		return exit, nil
	}
}

func TestRun(t *testing.T) {
	cmd := &Command{Args: []string{"x"}}
	if err := Run(t.Context(), &fakeSandbox{run: printOutput("", "", Exit{})}, cmd); err != nil {
		t.Errorf("exit 0: %v", err)
	}
	var exit *ExitError
	if err := Run(t.Context(), &fakeSandbox{run: printOutput("", "", Exit{Code: 3})}, cmd); !errors.As(err, &exit) || exit.Exit.Code != 3 || err.Error() != "exited with code 3" {
		t.Errorf("exit 3: %v", err)
	}
	lost := E("wait", "", ErrStopped, nil)
	if err := Run(t.Context(), &fakeSandbox{run: func(*Command, <-chan struct{}) (Exit, error) { return Exit{}, lost }}, cmd); err != lost {
		t.Errorf("a Wait that fails: %v", err)
	}
	if err := Run(t.Context(), &fakeSandbox{}, &Command{Args: []string{"/no"}}); KindOf(err) != ErrCommandNotFound {
		t.Errorf("an Exec that fails: %v", err)
	}
}

func TestRunKillsWhenItsContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := false
	sb := &fakeSandbox{run: func(_ *Command, killed <-chan struct{}) (Exit, error) {
		cancel()
		<-killed
		ended = true
		return Exit{Code: 137, Signal: SIGKILL}, nil
	}}
	if err := Run(ctx, sb, &Command{Args: []string{"x"}}); err != context.Canceled {
		t.Errorf("Run: %v, want context.Canceled", err)
	}
	if !ended {
		t.Error("Run returned before the process had ended")
	}
}

func TestOutput(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	out, err := Output(t.Context(), &fakeSandbox{run: printOutput(long, "warning\n", Exit{})}, &Command{Args: []string{"x"}})
	if err != nil || string(out) != long {
		t.Errorf("%d bytes, %v", len(out), err)
	}
	out, err = Output(t.Context(), &fakeSandbox{run: printOutput("some", long+"\nlast line\n", Exit{Code: 1})}, &Command{Args: []string{"x"}})
	var exit *ExitError
	if !errors.As(err, &exit) || string(out) != "some" || len(exit.Stderr) != 32<<10 || err.Error() != "exited with code 1: last line" {
		t.Errorf("%q, %d bytes of stderr, %v", out, len(exit.Stderr), err)
	}
	var stderr bytes.Buffer
	cmd := &Command{Args: []string{"x"}, Stderr: &stderr}
	if _, err := Output(t.Context(), &fakeSandbox{run: printOutput("", "to the caller", Exit{})}, cmd); err != nil || stderr.String() != "to the caller" || cmd.Stdout != nil {
		t.Errorf("stderr %q, the command %+v, %v", &stderr, cmd, err)
	}
}

func TestOutputOwnsItsBuffers(t *testing.T) {
	// Wait fails while the process continues to write; the race detector checks the writes.
	stop, stopped := make(chan struct{}), make(chan struct{})
	sb := &fakeSandbox{run: func(cmd *Command, _ <-chan struct{}) (Exit, error) {
		io.WriteString(cmd.Stdout, "early")
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				default:
					io.WriteString(cmd.Stdout, "late")
				}
			}
		}()
		return Exit{}, E("wait", "", ErrUnavailable, nil)
	}}
	out, err := Output(t.Context(), sb, &Command{Args: []string{"x"}})
	if !bytes.HasPrefix(out, []byte("early")) || KindOf(err) != ErrUnavailable {
		t.Errorf("%q, %v", out, err)
	}
	copied := string(out)
	close(stop)
	<-stopped
	if string(out) != copied {
		t.Error("the output changed after Output returned")
	}
}

func TestCapture(t *testing.T) {
	for _, tt := range []struct {
		limit                int64
		stdout, stderr       string
		cutStdout, cutStderr bool
	}{
		{0, "0123456789", "abc", false, false},
		{10, "0123456789", "abc", false, false},
		{9, "012345678", "abc", true, false},
		{2, "01", "ab", true, true},
	} {
		exit := Exit{Code: 5, Duration: 7}
		res, err := Capture(t.Context(), &fakeSandbox{run: printOutput("0123456789", "abc", exit)}, &Command{Args: []string{"x"}}, tt.limit)
		if err != nil || res.Exit != exit || string(res.Stdout) != tt.stdout || string(res.Stderr) != tt.stderr ||
			res.StdoutTruncated != tt.cutStdout || res.StderrTruncated != tt.cutStderr {
			t.Errorf("limit %d: %+v, %v", tt.limit, res, err)
		}
	}
	for _, exit := range []Exit{{Duration: 7}, {Code: 137, Signal: SIGKILL, Reason: "out of memory", Duration: 7}} {
		res, err := Capture(t.Context(), &fakeSandbox{run: printOutput("", "", exit)}, &Command{Args: []string{"x"}}, 0)
		if err != nil || res.Exit != exit {
			t.Errorf("the exit is %+v, %v; want %+v", res.Exit, err, exit)
		}
	}
}

func TestResultPrints(t *testing.T) {
	long := bytes.Repeat([]byte("x"), 1000)
	for _, tt := range []struct {
		res  Result
		want string
	}{
		{Result{}, `exited with code 0, stdout "", stderr ""`},
		{Result{Exit: Exit{Code: 3}, Stdout: []byte("a\n"), Stderr: []byte("b"), StderrTruncated: true}, `exited with code 3, stdout "a\n", stderr "b"...`},
		{Result{Stdout: long}, `exited with code 0, stdout "` + string(long[:200]) + `"..., stderr ""`},
	} {
		if got := tt.res.String(); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}

func TestHead(t *testing.T) {
	for _, tt := range []struct {
		limit     int64
		want      string
		truncated bool
	}{{-1, "", true}, {0, "", true}, {1, "a", true}, {4, "abcd", true}, {5, "abcde", false}, {9, "abcde", false}} {
		head := Head{Limit: tt.limit}
		for _, part := range []string{"", "abc", "de"} {
			if n, err := head.Write([]byte(part)); n != len(part) || err != nil {
				t.Errorf("limit %d: Write(%q) = %d, %v", tt.limit, part, n, err)
			}
		}
		if string(head.Bytes()) != tt.want || head.Truncated() != tt.truncated {
			t.Errorf("limit %d: %q, truncated %v; want %q, %v", tt.limit, head.Bytes(), head.Truncated(), tt.want, tt.truncated)
		}
	}
}

func TestTail(t *testing.T) {
	tail := Tail{Limit: 5}
	for _, tt := range []struct{ in, want string }{{"", ""}, {"abc", "abc"}, {"de", "abcde"}, {"f", "bcdef"}, {"0123456789", "56789"}} {
		if n, err := tail.Write([]byte(tt.in)); n != len(tt.in) || err != nil || string(tail.Bytes()) != tt.want {
			t.Errorf("after %q: %q, %d, %v; want %q", tt.in, tail.Bytes(), n, err, tt.want)
		}
	}
}

func TestDetectShell(t *testing.T) {
	for _, tt := range []struct {
		name, says string
		exit       Exit
		bash       int // exit code of /bin/bash
		want       string
	}{
		{"from the environment", "/bin/zsh\n", Exit{}, 0, "/bin/zsh"},
		{"empty, bash", "\n", Exit{}, 0, "/bin/bash"},
		{"empty, no bash", "\n", Exit{}, 1, "/bin/sh"},
		{"no shell", "/bin/false\n", Exit{}, 0, "/bin/bash"},
		{"sh fails", "", Exit{Code: 1}, 1, "/bin/sh"},
		{"several lines", "/bin/zsh\n/bin/ksh\n", Exit{}, 0, "/bin/bash"},
		{"a NUL byte", "/bin/z\x00sh\n", Exit{}, 0, "/bin/bash"},
		{"more than a path", strings.Repeat("x", 1<<20), Exit{}, 0, "/bin/bash"},
	} {
		sb := &fakeSandbox{run: func(cmd *Command, killed <-chan struct{}) (Exit, error) {
			if cmd.Args[0] == "/bin/bash" {
				return Exit{Code: tt.bash}, nil
			}
			return printOutput(tt.says, "", tt.exit)(cmd, killed)
		}}
		if got, err := DetectShell(t.Context(), sb, "root", nil); got != tt.want || err != nil {
			t.Errorf("%s: %q, %v; want %q", tt.name, got, err, tt.want)
		}
		for _, cmd := range sb.execs {
			if cmd.User != "root" {
				t.Errorf("%s: %q was run as %q", tt.name, cmd.Args, cmd.User)
			}
		}
	}
	sb := &fakeSandbox{run: func(*Command, <-chan struct{}) (Exit, error) { return Exit{}, E("wait", "", ErrStopped, nil) }}
	if got, err := DetectShell(t.Context(), sb, "", nil); KindOf(err) != ErrStopped {
		t.Errorf("in a stopped sandbox: %q, %v", got, err)
	}
}

// TestDetectShellIsNotHeldUp checks sandboxes whose sh misbehaves.
func TestDetectShellIsNotHeldUp(t *testing.T) {
	hang := func(_ *Command, killed <-chan struct{}) (Exit, error) {
		<-killed
		return Exit{Code: 137, Signal: SIGKILL}, nil
	}
	flood := func(cmd *Command, killed <-chan struct{}) (Exit, error) {
		for {
			select {
			case <-killed:
				return Exit{Code: 137, Signal: SIGKILL}, nil
			case <-time.After(time.Millisecond):
				cmd.Stdout.Write(make([]byte, 64<<10))
			}
		}
	}
	quick := printOutput("", "", Exit{})
	for _, tt := range []struct {
		name     string
		sh, bash func(*Command, <-chan struct{}) (Exit, error)
		want     string
	}{
		{"sh hangs", hang, quick, "/bin/bash"},
		{"sh prints for ever", flood, quick, "/bin/bash"},
		{"bash hangs too", hang, hang, "/bin/sh"},
	} {
		synctest.Test(t, func(t *testing.T) {
			sb := &fakeSandbox{run: func(cmd *Command, killed <-chan struct{}) (Exit, error) {
				if cmd.Args[0] == "/bin/bash" {
					return tt.bash(cmd, killed)
				}
				return tt.sh(cmd, killed)
			}}
			begin := time.Now()
			got, err := DetectShell(t.Context(), sb, "", nil)
			if took := time.Since(begin); got != tt.want || err != nil || took > 2*shellTimeout {
				t.Errorf("%s: %q, %v after %v; want %q soon", tt.name, got, err, took, tt.want)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if got, err := DetectShell(ctx, sb, "", nil); err != context.DeadlineExceeded {
				t.Errorf("%s: %q, %v within a second; want its context's error", tt.name, got, err)
			}
		})
	}
}

// memoryFS is a file system of one file.
type memoryFS struct {
	noFS
	name    string
	content []byte
	mode    uint32
}

func (m *memoryFS) Read(_ context.Context, name string, offset int64) (io.ReadCloser, FileInfo, error) {
	if name != m.name {
		return nil, FileInfo{}, E("read", name, ErrNotExist, nil)
	}
	return io.NopCloser(bytes.NewReader(m.content[offset:])), FileInfo{}, nil
}

func (m *memoryFS) Write(_ context.Context, name string, r io.Reader, opts WriteOptions) (FileInfo, error) {
	b, err := io.ReadAll(r)
	m.name, m.content, m.mode = name, b, opts.Mode
	return FileInfo{}, err
}

func TestReadFileWriteFile(t *testing.T) {
	m := &memoryFS{}
	sb := &fullSandbox{FS: m}
	if err := WriteFile(t.Context(), sb, "f", []byte("content"), 0o600); err != nil || m.mode != 0o600 {
		t.Errorf("WriteFile: mode %o, %v", m.mode, err)
	}
	if got, err := ReadFile(t.Context(), sb, "f"); string(got) != "content" || err != nil {
		t.Errorf("ReadFile: %q, %v", got, err)
	}
	if _, err := ReadFile(t.Context(), sb, "g"); KindOf(err) != ErrNotExist {
		t.Errorf("ReadFile of no file: %v", err)
	}
}

// serverSandbox is a Sandbox with a listening server.
type serverSandbox struct {
	Sandbox
	dial func(port int) (net.Conn, error)
}

func (w *serverSandbox) Dial(_ context.Context, port int) (net.Conn, error) { return w.dial(port) }

// All requests go to the sandbox, whatever the host in the URL or in a redirect.
func TestHTTPClient(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://192.0.2.1:1")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{}, 10)
	srv := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/out" {
				http.Redirect(w, r, "http://example.com:8080/in", http.StatusFound)
				return
			}
			io.WriteString(w, r.Host)
		}),
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateClosed {
				closed <- struct{}{}
			}
		},
	}
	go srv.Serve(l)
	defer srv.Close()
	var ports []int
	c := HTTPClient(&serverSandbox{dial: func(port int) (net.Conn, error) {
		ports = append(ports, port)
		return net.Dial("tcp", l.Addr().String())
	}}, 3002)
	for _, tt := range []struct {
		url, want string
		requests  int
	}{
		{"http://localhost/health", "localhost", 1},
		{"http://web.internal:99/health", "web.internal:99", 1},
		{"http://localhost/out", "example.com:8080", 2},
	} {
		ports = nil
		res, err := c.Get(tt.url)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if string(b) != tt.want || err != nil || len(ports) != tt.requests || ports[0] != 3002 {
			t.Errorf("%s: the server said %q, %v; dialled %v", tt.url, b, err, ports)
		}
		for range tt.requests {
			<-closed
		}
	}
}

// A request fails with the error of Dial.
func TestHTTPClientErrors(t *testing.T) {
	c := HTTPClient(&serverSandbox{dial: func(int) (net.Conn, error) { return nil, E("dial", "x", ErrUnavailable, nil) }}, 80)
	if _, err := c.Get("http://localhost/"); KindOf(err) != ErrUnavailable {
		t.Errorf("Get: %v, want %q", err, ErrUnavailable)
	}
}

func TestExecuteCode(t *testing.T) {
	small, large := strings.Repeat("x", maxCodeArgument), strings.Repeat("x", maxCodeArgument+1)
	byStdin := []string{": code; atoll_code=$(cat) || exit; eval \"unset atoll_code; $atoll_code\""}
	for language, want := range map[string]struct{ argument, stdin []string }{
		"python": {[]string{"python3", "-c"}, []string{"python3", "-"}}, "Python3": {[]string{"python3", "-c"}, []string{"python3", "-"}},
		"node": {[]string{"node", "-e"}, []string{"node", "-"}}, "JavaScript": {[]string{"node", "-e"}, []string{"node", "-"}}, "JS": {[]string{"node", "-e"}, []string{"node", "-"}},
		"bash": {[]string{"bash", "-c"}, append([]string{"bash", "-c"}, byStdin...)}, "sh": {[]string{"sh", "-c"}, append([]string{"sh", "-c"}, byStdin...)},
	} {
		sb := &fakeSandbox{run: printOutput("out", "err", Exit{Code: 3})}
		for _, text := range []string{small, large} {
			res, err := ExecuteCode(t.Context(), sb, &Code{Language: language, Code: text, Env: []string{"A=b"}, Dir: "d", User: "u", Timeout: 7})
			if err != nil || res.Code != 3 || string(res.Stdout) != "out" || string(res.Stderr) != "err" {
				t.Errorf("%s: %v, %v", language, res, err)
			}
		}
		for i, args := range [][]string{append(want.argument, small), want.stdin} {
			cmd := sb.execs[i]
			if !slices.Equal(cmd.Args, args) || !slices.Equal(cmd.Env, []string{"A=b"}) || cmd.Dir != "d" || cmd.User != "u" || cmd.Timeout != 7 {
				t.Errorf("%s: %.100q in %+v", language, cmd.Args, cmd)
			}
			if (cmd.Stdin != nil) != (i == 1) {
				t.Errorf("%s: stdin %v", language, cmd.Stdin)
			}
		}
		if text, err := io.ReadAll(sb.execs[1].Stdin); err != nil || string(text) != large {
			t.Errorf("%s: %d bytes on stdin, %v", language, len(text), err)
		}
	}
	if res, err := ExecuteCode(t.Context(), &fakeSandbox{}, &Code{Language: "Basic", Code: "10"}); err != nil || res.Code != -1 || string(res.Stderr) != "unsupported language: Basic" {
		t.Errorf("no language: %v, %v", res, err)
	}
	for kind, code := range map[Kind]int{ErrCommandNotFound: 127, ErrExecFailed: 126} {
		sb := &fakeSandbox{run: func(*Command, <-chan struct{}) (Exit, error) { return Exit{}, Errorf("exec", "id", kind, "why") }}
		if res, err := ExecuteCode(t.Context(), sb, &Code{Language: "sh", Code: "x"}); err != nil || res.Code != code || string(res.Stderr) != "why" {
			t.Errorf("%s: %v, %v", kind, res, err)
		}
	}
	for _, text := range []string{"a\x00b", strings.Repeat("x", MaxCode+1)} {
		if _, err := ExecuteCode(t.Context(), &fakeSandbox{}, &Code{Language: "sh", Code: text}); KindOf(err) != ErrInvalid {
			t.Errorf("%d bytes: %v", len(text), err)
		}
	}
}
