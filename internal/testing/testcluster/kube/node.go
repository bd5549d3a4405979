package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A nodeConfig says what a cluster of one machine is. It keeps all that it has in Dir.
type nodeConfig struct {
	Dir                                                    string // at most 60 bytes, for the paths of sockets
	Cgroup                                                 string // the name of the control group that all pods are in
	Address                                                string // of the machine
	Pods                                                   string // their network
	Services                                               string // theirs
	Busybox                                                string // its program
	Token                                                  string // of who may do everything
	NodeToken, ControllerToken, SchedulerToken, ProxyToken string
}

// initNode is the first process of namespaces of mounts, processes, networks, names and
// memory, which end with it: it runs node, and waits for whoever has no parent any more.
func initNode(config string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	child, err := os.StartProcess(self, []string{"kube", "node", config}, &os.ProcAttr{Files: []*os.File{nil, os.Stdout, os.Stderr}})
	if err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return err
		}
		if pid == child.Pid {
			return errors.New("the node has ended")
		}
	}
}

// node runs a cluster of one machine.
func node(config string) error {
	text, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	var n nodeConfig
	if err := json.Unmarshal(text, &n); err != nil {
		return fmt.Errorf("%s: %w", config, err)
	}
	for _, step := range []func() error{n.mount, n.network, n.cgroups, n.write} {
		if err := step(); err != nil {
			return err
		}
	}
	n.runAll()
	return nil
}

// at is the path of one of its files.
func (n *nodeConfig) at(name ...string) string {
	return filepath.Join(append([]string{n.Dir}, name...)...)
}

// wanted is what the kubelet sets for the whole machine: here it finds it set, in files
// that stand before those of the kernel.
var wanted = map[string]string{"kernel/panic": "10", "kernel/panic_on_oops": "1", "vm/overcommit_memory": "1"}

// mount gives it directories that programs have no setting for.
func (n *nodeConfig) mount() error {
	for _, how := range []uintptr{syscall.MS_PRIVATE, syscall.MS_SHARED} { // what it mounts is its own, and its containers'
		if err := syscall.Mount("", "/", "", syscall.MS_REC|how, ""); err != nil {
			return fmt.Errorf("mount /: %w", err)
		}
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, dir := range []string{"/run", "/var/lib", "/var/log"} {
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	for _, dir := range []string{"/run/wanted", "/var/log/containers"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for name, value := range wanted {
		file := filepath.Join("/run/wanted", strings.ReplaceAll(name, "/", "."))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := syscall.Mount(file, filepath.Join("/proc/sys", name), "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", name, err)
		}
	}
	return nil
}

// network gives it an interface that leads nowhere, with its address.
func (n *nodeConfig) network() error {
	if err := syscall.Sethostname([]byte(nodeName)); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", "eth0", "type", "bridge"}, // which every kernel has that can have pods
		{"addr", "add", n.Address + "/24", "dev", "eth0"},
		{"link", "set", "eth0", "up"},
		{"route", "add", "default", "dev", "eth0"}, // the kubelet looks for one
	} {
		if out, err := exec.Command(n.Busybox, append([]string{"ip"}, args...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
}

// cgroups makes its control group in each hierarchy: two kubelets in one would take each
// other's pods for lost.
func (n *nodeConfig) cgroups() error {
	const top = "/sys/fs/cgroup"
	parents := []string{top}
	if _, err := os.Stat(filepath.Join(top, "cgroup.controllers")); err != nil { // version 1
		parents, _ = filepath.Glob(top + "/*/tasks")
		for i, tasks := range parents {
			parents[i] = filepath.Dir(tasks)
		}
	}
	for _, parent := range parents {
		dir := filepath.Join(parent, n.Cgroup)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} { // in version 1 nobody hands them down
			value, err := os.ReadFile(filepath.Join(parent, name))
			if errors.Is(err, fs.ErrNotExist) || len(strings.TrimSpace(string(value))) == 0 {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, name), value, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// runAll runs its programs, each again when it ends, and holds those back for which there
// is a file in the directory hold.
func (n *nodeConfig) runAll() {
	var all sync.WaitGroup
	for _, p := range n.programs() {
		all.Go(func() {
			for {
				n.run(p)
				time.Sleep(pause)
			}
		})
	}
	all.Wait()
}

const pause = 50 * time.Millisecond

// run runs a program until it ends or is to be held back. While it runs there is a file
// with its name in the directory run.
func (n *nodeConfig) run(p program) {
	name := p.args[0]
	held := func() bool {
		_, err := os.Stat(n.at("hold", name))
		return err == nil
	}
	if held() {
		return
	}
	log, err := os.OpenFile(n.at("log", name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer log.Close()
	ctx, kill := context.WithCancel(context.Background())
	defer kill()
	cmd := exec.CommandContext(ctx, cmp.Or(p.path, filepath.Join(programDir(), name)), p.args[1:]...)
	cmd.Args[0], cmd.Stdout, cmd.Stderr, cmd.Dir = name, log, log, n.Dir
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(log, err)
		return
	}
	running := n.at("run", name)
	_ = os.WriteFile(running, []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		_ = os.Remove(running)
		close(ended)
	}()
	for {
		select {
		case <-ended:
			return
		case <-time.After(pause):
			if held() {
				kill()
			}
		}
	}
}

// programDir is where this program is, with its other names beside it.
func programDir() string {
	self, err := os.Executable()
	if err != nil {
		panic(err) // there is no /proc
	}
	return filepath.Dir(self)
}
