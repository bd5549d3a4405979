//go:build linux

package sentry

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

func TestIdleELF(t *testing.T) {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		data, err := idleELF(arch)
		if err != nil {
			t.Fatal(err)
		}
		f, err := elf.NewFile(bytes.NewReader(data))
		if err != nil {
			t.Fatalf("%s: %v", arch, err)
		}
		if f.Machine != machine || f.Type != elf.ET_EXEC || len(f.Progs) != 1 {
			t.Errorf("%s: machine %v, type %v, %d segments", arch, f.Machine, f.Type, len(f.Progs))
		}
		p := f.Progs[0]
		if p.Filesz != uint64(len(data)) || f.Entry < p.Vaddr || f.Entry >= p.Vaddr+p.Memsz {
			t.Errorf("%s: segment of %d bytes at %#x for a file of %d, entry %#x", arch, p.Filesz, p.Vaddr, len(data), f.Entry)
		}
	}
	if _, err := idleELF("mips"); err == nil {
		t.Error("idleELF(mips): no error")
	}
}

// TestIdleIgnoresSignals runs the idle init on the host's own kernel.
func TestIdleIgnoresSignals(t *testing.T) {
	program, err := idleELF(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), idleName)
	if err := os.WriteFile(path, program, 0o700); err != nil {
		t.Fatal(err)
	}
	p, err := os.StartProcess(path, []string{"idle"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Kill(); _, _ = p.Wait() }()
	status := filepath.Join("/proc", strconv.Itoa(p.Pid), "status")
	const all = 0x7ffbfeff // 1 to 31 except SIGKILL and SIGSTOP; it may inherit more
	for deadline := time.Now().Add(testenv.Scale(10 * time.Second)); ; time.Sleep(time.Millisecond) {
		data, err := os.ReadFile(status)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(data), "SigIgn:\t")
		line, _, _ := strings.Cut(rest, "\n")
		if mask, err := strconv.ParseUint(line, 16, 64); err == nil && mask&all == all {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("idle init does not ignore all signals:\n%s", data)
		}
	}
	if err := p.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(unix.Signal(0)); err != nil {
		t.Errorf("idle init ended on SIGTERM: %v", err)
	}
}

func TestDescendants(t *testing.T) {
	mark := []string{"A=1", processEnv + "=web"}
	procs := []processInfo{
		{pid: 1},
		{pid: 2, ppid: 0, sid: 2},            // what Exec started; it has dropped its environment
		{pid: 3, ppid: 2, sid: 2},            // its child
		{pid: 4, ppid: 3, sid: 4},            // a grandchild in a session of its own
		{pid: 5, ppid: 1, sid: 2},            // an orphan in its session
		{pid: 6, ppid: 1, sid: 6, env: mark}, // an orphan in a session of its own
		{pid: 7, ppid: 6, sid: 6},            // and its child
		{pid: 8, ppid: 0, sid: 8},            // another Exec's
		{pid: 9, ppid: 1, sid: 8, env: []string{processEnv + "=other"}},
	}
	got := findDescendants(procs, 2, "web")
	slices.Sort(got)
	if want := []int32{2, 3, 4, 5, 6, 7}; !slices.Equal(got, want) {
		t.Errorf("descendants = %v, want %v", got, want)
	}
}

func TestTypedSignal(t *testing.T) {
	var tio unix.Termios
	tio.Lflag = unix.ISIG | unix.ICANON | unix.IEXTEN
	tio.Cc[unix.VINTR], tio.Cc[unix.VQUIT], tio.Cc[unix.VSUSP], tio.Cc[unix.VLNEXT] = 3, 28, 26, 22
	for _, tt := range []struct {
		typed string
		n     int
		want  atoll.Signal
	}{
		{"ls\r", 0, 0},
		{"\x03", 1, atoll.SIGINT},
		{"a\x03b\x1a", 2, atoll.SIGINT},
		{"\x1a\x03", 1, atoll.SIGTSTP},
		{"\x1c", 1, atoll.SIGQUIT},
		{"\x16\x03\x03", 3, atoll.SIGINT}, // the first one is quoted
		{"\x00", 0, 0},
	} {
		if n, got := new(keyboard).typedSignal(&tio, []byte(tt.typed)); n != tt.n || got != tt.want {
			t.Errorf("typedSignal(%q) = %d, %v, want %d, %v", tt.typed, n, got, tt.n, tt.want)
		}
	}
}

// A character that ^V quotes may come later, but not after a change of the mode; without
// line editing, ^V quotes nothing.
func TestQuotedSignal(t *testing.T) {
	const lines, noLines = unix.ISIG | unix.ICANON | unix.IEXTEN, unix.ISIG | unix.IEXTEN
	var k keyboard
	for i, typed := range []struct {
		mode uint32
		keys string
		want atoll.Signal
	}{
		{lines, "\x16", 0},
		{lines, "\x03", 0},
		{lines, "\x03", atoll.SIGINT},
		{lines, "a\x16", 0},
		{lines, "\x16\x16", 0}, // the first is quoted, the second quotes
		{lines, "\x1a\x1a", atoll.SIGTSTP},
		{lines, "\x16", 0},
		{noLines, "\x03", atoll.SIGINT},
		{noLines, "\x16", 0},
		{noLines, "\x03", atoll.SIGINT},
		{lines, "\x16", 0},
		{lines &^ unix.ISIG, "\x03", 0},
		{lines, "\x03", atoll.SIGINT},
	} {
		mode := unix.Termios{Lflag: typed.mode}
		mode.Cc[unix.VINTR], mode.Cc[unix.VSUSP], mode.Cc[unix.VLNEXT] = 3, 26, 22
		if _, got := k.typedSignal(&mode, []byte(typed.keys)); got != typed.want {
			t.Errorf("%d: typed %q: %v, want %v", i, typed.keys, got, typed.want)
		}
	}
}

func TestSystemAccounts(t *testing.T) {
	passwd := "root:hash:0:0:Admin,Room 1:/root:/bin/bash\nalice:x:1000:1000:Alice:/home/alice:/bin/zsh\nnobody:x:65534:65534::/x:/bin/false\n"
	got := systemAccounts("passwd", []byte(passwd))
	want := "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
	if got != want {
		t.Errorf("passwd = %q, want %q", got, want)
	}
	if got := systemAccounts("passwd", []byte(strings.Repeat("x", 100_000)+"\n"+passwd)); got != want {
		t.Errorf("passwd after a long line = %q, want %q", got, want)
	}
	if got := systemAccounts("group", []byte("sudo:x:27:alice\nalice:x:1000:\n")); got != "sudo:x:27:\n" {
		t.Errorf("group = %q", got)
	}
}
