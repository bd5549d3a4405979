//go:build linux

package pid1

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

func TestProgram(t *testing.T) {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		data, err := Program(arch)
		if err != nil {
			t.Fatal(err)
		}
		f, err := elf.NewFile(bytes.NewReader(data))
		if err != nil {
			t.Fatalf("%s: %v", arch, err)
		}
		if f.Machine != machine || f.Type != elf.ET_EXEC || len(f.Progs) != 2 {
			t.Fatalf("%s: machine %v, type %v, %d segments", arch, f.Machine, f.Type, len(f.Progs))
		}
		text, own := f.Progs[0], f.Progs[1]
		if f.Entry < text.Vaddr || f.Entry >= text.Vaddr+text.Memsz || own.Off+own.Filesz != uint64(len(data)) || text.Flags != elf.PF_R|elf.PF_X || own.Flags != elf.PF_R|elf.PF_W {
			t.Errorf("%s: entry %#x, segments %+v and %+v of %d bytes", arch, f.Entry, text.ProgHeader, own.ProgHeader, len(data))
		}
	}
	if _, err := Program("mips"); err == nil {
		t.Error("Program(mips): no error")
	}
}

// startProgram runs the program on the host's own kernel, and returns the host's ends of its pipes.
func startProgram(t *testing.T) (process *os.Process, requests, replies *os.File) {
	t.Helper()
	data, err := Program(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "init")
	if err := os.WriteFile(path, data, 0o700); err != nil {
		t.Fatal(err)
	}
	theirRequests, requests, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	replies, theirReplies, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path)
	cmd.ExtraFiles = []*os.File{theirRequests, theirReplies}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirRequests.Close()
	_ = theirReplies.Close()
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process, requests, replies
}

func connectProgram(t *testing.T) *Init {
	t.Helper()
	_, requests, replies := startProgram(t)
	in, err := Connect(requests, replies, 0, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.Close)
	return in
}

// TestSignals sends all signals that a program inside may send, and expects no end.
func TestSignals(t *testing.T) {
	process, _, _ := startProgram(t)
	status := filepath.Join("/proc", strconv.Itoa(process.Pid), "status")
	for deadline := time.Now().Add(testenv.Scale(10 * time.Second)); ; time.Sleep(time.Millisecond) {
		data, err := os.ReadFile(status)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), "SigBlk:\tfffffffe7ffbfeff") || strings.Contains(string(data), "SigBlk:\tfffffffffffbfeff") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the program does not block all signals:\n%s", data)
		}
	}
	for sig := unix.Signal(1); sig <= 64; sig++ {
		if sig == unix.SIGKILL || sig == unix.SIGSTOP {
			continue
		}
		if err := process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	if err := process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("the program ended: %v", err)
	}
}

// A running process is a process with what it has written.
type running struct {
	*Process
	stdin          *os.File
	stdout, stderr *collector
}

type collector struct {
	mu   sync.Mutex
	b    bytes.Buffer
	done chan struct{}
}

func collectOutput(f *os.File) *collector {
	c := &collector{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		buf := make([]byte, 64<<10)
		for {
			n, err := f.Read(buf)
			c.mu.Lock()
			c.b.Write(buf[:n])
			c.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return c
}

func (c *collector) readText() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.b.String()
}

func (c *collector) awaitText(t *testing.T, what string) {
	t.Helper()
	for deadline := time.Now().Add(testenv.Scale(10 * time.Second)); !strings.Contains(c.readText(), what); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the output is %q, want %q in it", c.readText(), what)
		}
	}
}

func makePipes(t *testing.T) (Streams, *running) {
	t.Helper()
	var ends [6]*os.File
	for i := 0; i < len(ends); i += 2 {
		var err error
		if ends[i], ends[i+1], err = os.Pipe(); err != nil {
			t.Fatal(err)
		}
	}
	return Streams{ends[0], ends[3], ends[5]}, &running{stdin: ends[1], stdout: collectOutput(ends[2]), stderr: collectOutput(ends[4])}
}

func (in *Init) startCommand(t *testing.T, cmd *Command) (*running, error) {
	t.Helper()
	streams, r := makePipes(t)
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	cmd.UID, cmd.GID = uint32(os.Getuid()), uint32(os.Getgid())
	cmd.Path = "/nowhere:/usr/bin:/bin"
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Scale(20*time.Second))
	defer cancel()
	var err error
	r.Process, err = in.Start(ctx, cmd, streams)
	return r, err
}

func (r *running) awaitExit(t *testing.T) unix.WaitStatus {
	t.Helper()
	select {
	case <-r.Ended():
	case <-time.After(testenv.Scale(20 * time.Second)):
		t.Fatalf("the process does not end; stdout %q, stderr %q", r.stdout.readText(), r.stderr.readText())
	}
	status, err := r.Wait()
	if err != nil {
		t.Fatal(err)
	}
	<-r.stdout.done
	<-r.stderr.done
	return status
}

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("setgroups needs root, which it has inside")
	}
}

func TestProcess(t *testing.T) {
	requireRoot(t)
	in := connectProgram(t)
	r, err := in.startCommand(t, &Command{Args: []string{"sh", "-c", "cat; echo $A >&2; pwd; exit 7"}, Env: []string{"A=b", "PATH=/usr/bin:/bin"}, Dir: "/tmp", Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(r.stdin, "hello\n"); err != nil {
		t.Fatal(err)
	}
	r.stdout.awaitText(t, "hello\n")
	_ = r.stdin.Close()
	if status := r.awaitExit(t); status.ExitStatus() != 7 || r.stdout.readText() != "hello\n/tmp\n" || r.stderr.readText() != "b\n" {
		t.Errorf("status %v, stdout %q, stderr %q", status, r.stdout.readText(), r.stderr.readText())
	}
	r, err = in.startCommand(t, &Command{Args: []string{"/bin/sh", "-c", "cat; kill -TERM $$"}})
	if err != nil {
		t.Fatal(err)
	}
	if status := r.awaitExit(t); !status.Signaled() || status.Signal() != unix.SIGTERM {
		t.Errorf("status %v, want the end by SIGTERM, after no input", status)
	}
}

func TestLargeStreams(t *testing.T) {
	requireRoot(t)
	in := connectProgram(t)
	r, err := in.startCommand(t, &Command{Args: []string{"cat"}, Stdin: true, Env: []string{"BIG=" + strings.Repeat("x", 100<<10)}})
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 3<<20+17)
	for i := range data {
		data[i] = byte(i * i >> 7)
	}
	go func() { _, _ = r.stdin.Write(data); _ = r.stdin.Close() }()
	if status := r.awaitExit(t); status != 0 || r.stdout.readText() != string(data) {
		t.Errorf("status %v, %d bytes came back of %d", status, len(r.stdout.readText()), len(data))
	}
}

func TestInputThatNobodyReads(t *testing.T) {
	requireRoot(t)
	in := connectProgram(t)
	r, err := in.startCommand(t, &Command{Args: []string{"sleep", "0.2"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	n, err := r.stdin.Write(make([]byte, 1<<20))
	if err == nil || n == 1<<20 {
		t.Errorf("a process that reads nothing took %d bytes, %v", n, err)
	}
	r.awaitExit(t)
}

func TestStartFails(t *testing.T) {
	requireRoot(t)
	in := connectProgram(t)
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		cmd  Command
		want error
	}{
		{Command{Args: []string{"no-such-program"}}, unix.ENOENT},
		{Command{Args: []string{"/no/such/program"}}, unix.ENOENT},
		{Command{Args: []string{file("text", "#!/no/such/interpreter\n", 0o755)}}, unix.ENOENT},
		{Command{Args: []string{file("plain", "x", 0o644)}}, unix.EACCES},
		{Command{Args: []string{dir}}, unix.EACCES},
		{Command{Args: []string{fifo}}, unix.EACCES},
		{Command{Args: []string{file("garbage", "\x00\x01\x02\x03", 0o755)}}, unix.ENOEXEC},
		{Command{Args: []string{"true"}, Dir: "/no/such/dir"}, unix.ENOENT},
		{Command{Args: []string{"true", strings.Repeat("x", 4<<20)}}, unix.E2BIG},
		{Command{Args: []string{"true", strings.Repeat("x", 1<<20)}}, unix.E2BIG},
	} {
		_, err := in.startCommand(t, &tt.cmd)
		var inside *Error
		if !errors.Is(err, tt.want) || !errors.As(err, &inside) {
			t.Errorf("%.40q in %q: %v, want %v", tt.cmd.Args, tt.cmd.Dir, err, tt.want)
		}
	}
	r, err := in.startCommand(t, &Command{Args: []string{"ls", "/proc/self/fd"}})
	if err != nil {
		t.Fatal(err)
	}
	if r.awaitExit(t); strings.Fields(r.stdout.readText()) == nil || len(strings.Fields(r.stdout.readText())) != 4 { // and the directory
		t.Errorf("the process has the descriptors %q", r.stdout.readText())
	}
}

func TestTerminal(t *testing.T) {
	requireRoot(t)
	in := connectProgram(t)
	r, err := in.startCommand(t, &Command{Args: []string{"sh"}, Env: []string{"PS1=ready ", "PATH=/usr/bin:/bin"}, TTY: true, Rows: 33, Cols: 77, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	r.stdout.awaitText(t, "ready ")
	fmt.Fprint(r.stdin, "tty; stty size\n")
	r.stdout.awaitText(t, "/dev/pts/")
	r.stdout.awaitText(t, "33 77")
	if err := r.Resize(context.Background(), 44, 55); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(r.stdin, "stty size\n")
	r.stdout.awaitText(t, "44 55")
	fmt.Fprint(r.stdin, `sh -c 'trap "exit 9" INT; echo al""ive; while :; do sleep 0.02; done'`+"\n")
	r.stdout.awaitText(t, "alive")
	fmt.Fprint(r.stdin, "\x03")
	fmt.Fprint(r.stdin, "echo c''ode $?; exit 3\n")
	r.stdout.awaitText(t, "code 9")
	if status := r.awaitExit(t); status.ExitStatus() != 3 {
		t.Errorf("status %v", status)
	}
}

func TestMany(t *testing.T) {
	requireRoot(t)
	in := connectProgram(t)
	var group sync.WaitGroup
	for i := range 40 {
		group.Go(func() {
			r, err := in.startCommand(t, &Command{Args: []string{"sh", "-c", fmt.Sprintf("echo %d; sleep 0.0%d; exit %d", i, i%10, i)}, Env: []string{"PATH=/usr/bin:/bin"}})
			if err != nil {
				t.Error(err)
				return
			}
			if status := r.awaitExit(t); status.ExitStatus() != i || r.stdout.readText() != fmt.Sprintln(i) {
				t.Errorf("process %d: status %v, output %q", i, status, r.stdout.readText())
			}
		})
	}
	group.Wait()
}

// TestLost ends the program while a process runs.
func TestLost(t *testing.T) {
	requireRoot(t)
	process, requests, replies := startProgram(t)
	in, err := Connect(requests, replies, 0, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	r, err := in.startCommand(t, &Command{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Kill(r.PID(), unix.SIGKILL) }()
	if err := process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Wait(); !errors.Is(err, ErrLost) {
		t.Errorf("Wait: %v", err)
	}
	if _, err := in.startCommand(t, &Command{Args: []string{"true"}}); !errors.Is(err, ErrLost) {
		t.Errorf("Start: %v", err)
	}
}

// TestStopped stops the program, as root inside can.
func TestStopped(t *testing.T) {
	requireRoot(t)
	process, requests, replies := startProgram(t)
	in, err := Connect(requests, replies, 0, func(int) { _ = process.Signal(unix.SIGCONT) })
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	r, err := in.startCommand(t, &Command{Args: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"one\n", "two\n"} {
		if err := process.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(r.stdin, text)
		r.stdout.awaitText(t, text)
	}
}

// TestHold takes over the processes of a client, as that of a copy of a sandbox does.
func TestHold(t *testing.T) {
	requireRoot(t)
	_, requests, replies := startProgram(t)
	first, err := Connect(requests, replies, 0, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	r, err := first.startCommand(t, &Command{Args: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(r.stdin, "one\n")
	r.stdout.awaitText(t, "one\n")
	state, release, err := first.Hold(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	handle := r.Handle()
	if len(state.Running) != 1 || state.Running[0] != handle || len(state.Ended) != 0 {
		t.Errorf("the state is %+v, want %+v running", state, handle)
	}
	second, err := Connect(requests, replies, state.Saved, func(int) {}) // the first one is on hold for good
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	streams, again := makePipes(t)
	if again.Process, err = second.Adopt(context.Background(), handle, streams); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(again.stdin, "two\n")
	again.stdout.awaitText(t, "two\n")
	_ = again.stdin.Close()
	if status := again.awaitExit(t); status != 0 {
		t.Errorf("status %v", status)
	}
}

func TestKeyboard(t *testing.T) {
	const lines, noLines = unix.ISIG | unix.ICANON | unix.IEXTEN, unix.ISIG | unix.IEXTEN
	var k keyboard
	for i, tt := range []struct {
		flags uint32
		typed string
		n     int
		next  kind
	}{
		{lines, "abc", 3, plainKey},
		{lines, "\x03", 0, signalKey},
		{lines, "a\x03b\x1a", 1, signalKey},
		{lines, "\x1a\x03", 0, signalKey},
		{lines, "ab\x1c", 2, signalKey},
		{lines, "\x00", 1, plainKey},
		{lines, "a\x16\x03", 1, quoteKey},
		{noLines, "\x16\x03", 1, signalKey},
		{unix.ICANON | unix.IEXTEN, "\x03\x16", 1, quoteKey},
		{0, "\x03\x16", 2, plainKey},
		{lines, "a\x04b", 1, endKey},
		{noLines, "a\x04b", 3, plainKey},
	} {
		m := mode{Lflag: tt.flags}
		m.Cc[unix.VINTR], m.Cc[unix.VQUIT], m.Cc[unix.VSUSP], m.Cc[unix.VLNEXT] = 3, 28, 26, 22
		m.Cc[unix.VEOF] = 4
		if n, next := k.splitKeys(&m, []byte(tt.typed)); n != tt.n || next != tt.next {
			t.Errorf("%d: split(%q) = %d, %v; want %d, %v", i, tt.typed, n, next, tt.n, tt.next)
		}
	}
	// A quoted key may come later, but not after a change of the mode.
	k.quoted = true
	if n, next := k.splitKeys(&k.mode, []byte("\x03")); n != 0 || next != quotedKey {
		t.Errorf("a quoted key: %d, %v", n, next)
	}
	other := k.mode
	other.Lflag ^= unix.ECHO
	if n, _ := k.splitKeys(&other, []byte("a")); n != 1 {
		t.Errorf("after a change of the mode a key is quoted")
	}
}
