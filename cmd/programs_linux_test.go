package cmd_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// memoryAtVersion returns how much memory of its own, in bytes, a program has when it prints its
// version. How much of its file is resident, too, depends on how the file was written. The
// number of getrusage is of no use: it counts what the parent had when it forked. So the
// program's output is a pipe that is full, in whose write it is found.
func memoryAtVersion(t *testing.T, path string) int64 {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	size, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "version")
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}()
	proc := filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid))
	for end := time.Now().Add(testenv.Scale(20 * time.Second)); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		tasks, _ := filepath.Glob(proc + "/task/*/wchan")
		for _, task := range tasks {
			if where, _ := os.ReadFile(task); strings.Contains(string(where), "pipe_write") {
				return ownMemory(t, proc)
			}
		}
	}
	t.Errorf("%s has not printed its version", path)
	return 0
}

// ownMemory reads how much memory of a process belongs to no file.
func ownMemory(t *testing.T, proc string) int64 {
	t.Helper()
	status, err := os.ReadFile(proc + "/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(status, []byte("RssAnon:"))
	fields := strings.Fields(string(rest))
	if len(fields) == 0 {
		t.Fatalf("no RssAnon in %s", status)
	}
	kilobytes, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kilobytes << 10
}
