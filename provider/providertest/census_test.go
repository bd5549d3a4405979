//go:build linux

package providertest

import (
	"bufio"
	"errors"
	"io/fs"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// A census finds a grandchild after its parent has ended, and a process that is no descendant but
// shares a namespace with one.
func TestCensus(t *testing.T) {
	c, err := newCensus()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", "sleep 20 & echo $!; (sleep 20 & echo $!); read x; kill $!")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWUTS}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); errors.Is(err, fs.ErrPermission) {
		t.Skipf("no namespaces here: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	var pids []string
	for lines := bufio.NewScanner(out); len(pids) < 2 && lines.Scan(); {
		pids = append(pids, lines.Text())
	}
	c.recordProcesses()
	in.Close() // sh kills the grandchild, and dies
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	orphan := pids[1]
	defer exec.Command("kill", orphan).Run()
	err = retryFor(testenv.Scale(10*time.Second), func() error {
		left, err := c.listAlive()
		if err == nil && (len(left) != 1 || !strings.HasPrefix(left[0], orphan+" (sleep")) {
			err = errors.New("the census has " + strings.Join(left, ", "))
		}
		return err
	})
	if err != nil {
		t.Errorf("%v; want only process %s", err, orphan)
	}
	again, err := newCensus()
	if err != nil {
		t.Fatal(err)
	}
	if left, err := again.listAlive(); err != nil || slices.ContainsFunc(left, func(s string) bool { return strings.HasPrefix(s, orphan) }) {
		t.Errorf("a census that began later counts %v, %v", left, err)
	}
}
