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

// restartSilent restarts the engine after a failed test if the engine does not answer within
// that time, so that the next tests do not fail, too. It logs the stacks of the engine.
func (d *daemon) restartSilent(t testing.TB, within time.Duration) {
	silent := d.silentRequest(within)
	programs := d.findPrograms()
	if silent == "" || len(programs) == 0 { // it is no Docker Engine
		return
	}
	for _, pid := range programs {
		_ = syscall.Kill(pid, syscall.SIGUSR1) // both then log their stacks
	}
	time.Sleep(2 * time.Second)
	t.Logf("the engine does not answer a request for %s: restarting it; goroutines that have waited for minutes:\n%s", silent, d.waitingStacks())
	for _, pid := range programs {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err := d.Await(); err != nil {
		t.Logf("the restarted engine does not answer: %v", err)
	}
}

// answerTimeout bounds how long an engine takes to answer on a busy machine.
var answerTimeout = testenv.Scale(15 * time.Second)

// silentRequest returns the name of a request that the engine does not answer within that time;
// "" if it answers all.
func (d *daemon) silentRequest(within time.Duration) string {
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

// findPrograms returns the PIDs of the engine and its containerd.
func (d *daemon) findPrograms() (pids []int) {
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

// longWait matches the beginning of the stack of a goroutine that has waited for minutes.
var longWait = regexp.MustCompile(`(?m)^goroutine \d+ \[.*\d+ minutes.*\]:`)

// waitingStacks returns the stacks of goroutines of the engine and its containerd that have
// waited for minutes, from their logs.
func (d *daemon) waitingStacks() string {
	files, _ := filepath.Glob(d.At("*/goroutine-stacks-*.log"))
	var found []string
	for _, file := range append(files, d.At("log")) {
		text, _ := os.ReadFile(file)
		stacks := strings.ReplaceAll(string(text), `\n`, "\n") // containerd logs all stacks in one line
		for stack := range strings.SplitSeq(strings.ReplaceAll(stacks, `\t`, "\t"), "\n\n") {
			if longWait.MatchString(stack) {
				found = append(found, stack)
			}
		}
	}
	text := strings.Join(found, "\n\n")
	return text[:min(len(text), 64<<10)]
}

// An engine that has stopped answering is restarted for the next test.
func TestSilentEngineRestart(t *testing.T) {
	needEngine(t)
	d := ownDaemon(t)
	if err := d.Dockerd(); err != nil {
		t.Fatal(err)
	}
	if err := d.loadBusybox(t); err != nil {
		t.Fatal(err)
	}
	if silent := d.silentRequest(answerTimeout); silent != "" {
		t.Errorf("a healthy engine does not answer a request for %s", silent)
	}
	for _, pid := range d.findPrograms() {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	d.restartSilent(t, time.Second) // it never answers
	if silent := d.silentRequest(answerTimeout); silent != "" {
		t.Errorf("the restarted engine does not answer a request for %s", silent)
	}
	sb, err := d.openProvider(t).Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Error(err)
	}
}
