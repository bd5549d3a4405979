//go:build unix

package child

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// starterVar makes the test binary one that starts a program, and says which it is.
const starterVar = "ATOLL_CHILD_STARTER"

func TestMain(m *testing.M) {
	if how := os.Getenv(starterVar); how != "" {
		cmd := exec.Command("sleep", "1000")
		if how == "watched" {
			_, _, err := watchCommand(cmd)
			if err != nil {
				panic(err)
			}
			if err := cmd.Start(); err != nil {
				panic(err)
			}
			fmt.Println(cmd.Process.Pid)
		} else {
			p, err := Start(cmd)
			if err != nil {
				panic(err)
			}
			fmt.Println(p.cmd.Process.Pid)
		}
		time.Sleep(time.Hour)
	}
	os.Exit(m.Run())
}

// alive reports whether a process of that session is left.
func alive(t *testing.T, session int) bool {
	t.Helper()
	out, err := exec.Command("ps", "-e", "-o", "sid=,stat=,pid=").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) == 3 && f[0] == strconv.Itoa(session) && !strings.HasPrefix(f[1], "Z") {
			return true
		}
	}
	return false
}

func TestEndsWithItsStarter(t *testing.T) {
	for _, how := range []string{"bound", "watched"} {
		t.Run(how, func(t *testing.T) {
			starter := exec.Command(os.Args[0])
			starter.Env = append(os.Environ(), starterVar+"="+how)
			out, err := starter.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := starter.Start(); err != nil {
				t.Fatal(err)
			}
			var session int
			if _, err := fmt.Fscan(out, &session); err != nil {
				t.Fatal(err)
			}
			if !alive(t, session) {
				t.Fatal("it does not run")
			}
			_ = starter.Process.Signal(syscall.SIGKILL)
			_ = starter.Wait() // it was killed
			for deadline := time.Now().Add(testenv.Scale(10 * time.Second)); alive(t, session); {
				if time.Now().After(deadline) {
					t.Fatal("it outlives its starter")
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
}

// The thread that has started a program is needed for it, and not left to end.
func TestOutlivesOtherThreads(t *testing.T) {
	p, err := Start(exec.Command("sleep", "1000"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	churn(20)
	select {
	case <-p.Done():
		t.Fatal("ended with some thread: ", p.Err())
	case <-time.After(100 * time.Millisecond):
	}
}

func TestErrSaysWhatWasSaid(t *testing.T) {
	p, err := Start(exec.Command("sh", "-c", "echo something is wrong >&2; exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if err := p.Err(); err == nil || !strings.Contains(err.Error(), "exit status 3: something is wrong") {
		t.Errorf("got %v", err)
	}
	if p, err = Start(exec.Command("true")); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if err := p.Err(); err != nil {
		t.Error(err)
	}
	p.Kill()
	if _, err := Start(exec.Command("/there/is/none")); err == nil {
		t.Error("started what is not there")
	}
}

// A program whose descendant holds its stderr has ended nevertheless.
func TestDescendantsDoNotHoldIt(t *testing.T) {
	p, err := Start(exec.Command("sh", "-c", "sleep 15 & exit 0"))
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-time.After(testenv.Scale(10 * time.Second)):
		t.Fatal("it waits for a grandchild")
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
}

func TestWatchedPassesCodesAndStdio(t *testing.T) {
	cmd := exec.Command("sh", "-c", `cat; echo "[$1]"; exit 7`, "sh", "two  words")
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout = strings.NewReader("in\n"), &out
	_, release, err := watchCommand(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	err = cmd.Run()
	if cmd.ProcessState.ExitCode() != 7 || out.String() != "[two  words]\n" {
		t.Errorf("got %v, %q: programs get no stdin, all arguments, and their codes are passed on", err, out.String())
	}
}

func TestWatchedIsKilled(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	kill, release, err := watchCommand(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	session := cmd.Process.Pid
	kill(cmd.Process)
	if err := cmd.Wait(); err == nil {
		t.Error("it has ended well")
	}
	for deadline := time.Now().Add(testenv.Scale(10 * time.Second)); alive(t, session); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("something of it is left")
		}
	}
}

func TestWatchedPassesFiles(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", `echo inherited >&3; (: <&4) 2>/dev/null && echo open || true`)
	var out bytes.Buffer
	cmd.Stdout, cmd.ExtraFiles = &out, []*os.File{w}
	_, release, err := watchCommand(cmd)
	if err != nil {
		t.Fatal(err)
	}
	err = cmd.Run()
	release()
	w.Close()
	got, _ := io.ReadAll(r)
	r.Close()
	if err != nil || string(got) != "inherited\n" {
		t.Errorf("%q, %v", got, err)
	}
	if out.Len() > 0 {
		t.Error("it has the pipe, which is not for it")
	}
	cmd = exec.Command("true")
	cmd.ExtraFiles = make([]*os.File, 7)
	if _, _, err := watchCommand(cmd); err == nil {
		t.Error("took more files than a shell passes on")
	}
}

func TestConsoleIsAppendedToAndBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "console")
	for _, text := range []string{"one\n", "two\n"} {
		c, err := Console(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	if got, _ := os.ReadFile(path); string(got) != "one\ntwo\n" {
		t.Errorf("got %q", got)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	c, err := Console(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	flood := make([]byte, 1<<20)
	for range MaxConsole>>20 + 3 {
		if n, err := c.Write(flood); n != len(flood) || err != nil {
			t.Fatal(n, err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || len(got) != MaxConsole+len(fullNotice) || !bytes.HasSuffix(got, fullNotice) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := Console(filepath.Join(path, "x")); err == nil {
		t.Error("opened a console below a file")
	}
	if c, err = Console(""); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Write(flood); n != len(flood) || err != nil {
		t.Error(n, err)
	}
}
