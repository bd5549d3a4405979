//go:build linux

package docker_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// revive has the engine started again after a test has failed, if it does not answer
// within so long: one failure is enough. The test's log says what the engine was waiting for.
func (d *daemon) revive(t testing.TB, within time.Duration) {
	silent := d.silent(within)
	programs := d.programs()
	if silent == "" || len(programs) == 0 { // which is no Docker Engine
		return
	}
	for _, pid := range programs {
		_ = syscall.Kill(pid, syscall.SIGUSR1) // both print their stacks then
	}
	time.Sleep(2 * time.Second)
	t.Logf("the engine is silent when asked for %s, and started again; what has waited for minutes in it:\n%s", silent, d.waiting())
	for _, pid := range programs {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err := d.Await(); err != nil {
		t.Logf("the engine that was started again does not answer: %v", err)
	}
}

// patience is how long an engine may take to answer on a busy machine.
var patience = testenv.Scale(15 * time.Second)

// silent names what the engine does not answer within so long, or is empty.
func (d *daemon) silent(within time.Duration) string {
	c, err := client.New(client.WithHost(d.Host))
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	for _, ask := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"its version, and containerd's", func(ctx context.Context) error {
			_, err := c.ServerVersion(ctx, client.ServerVersionOptions{})
			return err
		}},
		{"facts", func(ctx context.Context) error {
			_, err := c.Info(ctx, client.InfoOptions{})
			return err
		}},
		{"volumes", func(ctx context.Context) error {
			_, err := c.VolumeList(ctx, client.VolumeListOptions{})
			return err
		}},
		{"a container", func(ctx context.Context) error {
			made, err := c.ContainerCreate(ctx, client.ContainerCreateOptions{Image: busybox})
			if err == nil {
				_, err = c.ContainerRemove(ctx, made.ID, client.ContainerRemoveOptions{Force: true})
			}
			return err
		}},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		err := ask.do(ctx)
		cancel()
		if err != nil {
			return fmt.Sprintf("%s (%v)", ask.what, err)
		}
	}
	return ""
}

// programs are the engine and its containerd.
func (d *daemon) programs() (pids []int) {
	comms, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, comm := range comms {
		name, _ := os.ReadFile(comm)
		if n := strings.TrimSpace(string(name)); n != "dockerd" && n != "containerd" {
			continue
		}
		cmdline, _ := os.ReadFile(filepath.Join(filepath.Dir(comm), "cmdline"))
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(comm)))
		if err == nil && strings.Contains(string(cmdline), d.Dir+"/") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// minutes is how the stack of a goroutine begins that has waited for some.
var minutes = regexp.MustCompile(`(?m)^goroutine \d+ \[.*\d+ minutes.*\]:`)

// waiting is what in the engine and its containerd has waited for minutes, as they have
// written it.
func (d *daemon) waiting() string {
	files, _ := filepath.Glob(d.At("*/goroutine-stacks-*.log"))
	var found []string
	for _, file := range append(files, d.At("log")) {
		text, _ := os.ReadFile(file)
		stacks := strings.ReplaceAll(string(text), `\n`, "\n") // containerd's are one line of its log
		for stack := range strings.SplitSeq(strings.ReplaceAll(stacks, `\t`, "\t"), "\n\n") {
			if minutes.MatchString(stack) {
				found = append(found, stack)
			}
		}
	}
	text := strings.Join(found, "\n\n")
	return text[:min(len(text), 64<<10)]
}

// An engine that stopped answering serves the next test again.
func TestSilentEngineIsStartedAgain(t *testing.T) {
	needEngine(t)
	d := own(t)
	if err := d.Dockerd(); err != nil {
		t.Fatal(err)
	}
	if err := d.loadBusybox(t); err != nil {
		t.Fatal(err)
	}
	if silent := d.silent(patience); silent != "" {
		t.Errorf("an engine that is well does not answer when asked for %s", silent)
	}
	for _, pid := range d.programs() {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	d.revive(t, time.Second) // it answers never
	if silent := d.silent(patience); silent != "" {
		t.Errorf("an engine that was started again does not answer when asked for %s", silent)
	}
	sb, err := d.open(t).Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Error(err)
	}
}
