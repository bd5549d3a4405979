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

// A nodeConfig describes a cluster of one node. All its files are in Dir.
type nodeConfig struct {
	Dir                                                    string // at most 60 bytes, for the paths of sockets
	Cgroup                                                 string // the name of the control group of all pods
	Address                                                string // of the node
	Pods                                                   string // network of the pods
	Services                                               string // network of the services
	Busybox                                                string // path of a static busybox
	Token                                                  string // of the administrator
	NodeToken, ControllerToken, SchedulerToken, ProxyToken string
}

// initNode is the first process of the namespaces for mounts, processes, networks, names and memory,
// which end with it. It runs runNode in a child and waits for orphaned processes.
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
			return errors.New("node ended")
		}
	}
}

// runNode runs a cluster of one node.
func runNode(config string) error {
	text, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	var n nodeConfig
	if err := json.Unmarshal(text, &n); err != nil {
		return fmt.Errorf("%s: %w", config, err)
	}
	for _, step := range []func() error{n.mountDirs, n.setUpNetwork, n.makeCgroups, n.writeConfig} {
		if err := step(); err != nil {
			return err
		}
	}
	n.runAll()
	return nil
}

// filePath returns the path of one of the node's files.
func (n *nodeConfig) filePath(name ...string) string {
	return filepath.Join(append([]string{n.Dir}, name...)...)
}

// sysctls are the settings that the kubelet wants for the whole machine. They are mounted over the
// kernel's files, so that the kubelet finds them set.
var sysctls = map[string]string{"kernel/panic": "10", "kernel/panic_on_oops": "1", "vm/overcommit_memory": "1"}

// mountDirs mounts directories whose paths the programs cannot change.
func (n *nodeConfig) mountDirs() error {
	for _, how := range []uintptr{syscall.MS_PRIVATE, syscall.MS_SHARED} { // share mounts with containers, and not with the machine
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
	for _, dir := range []string{"/run/sysctls", "/var/log/containers"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for name, value := range sysctls {
		file := filepath.Join("/run/sysctls", strings.ReplaceAll(name, "/", "."))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := syscall.Mount(file, filepath.Join("/proc/sys", name), "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", name, err)
		}
	}
	return nil
}

// setUpNetwork creates an interface without a peer, with the node's address.
func (n *nodeConfig) setUpNetwork() error {
	if err := syscall.Sethostname([]byte(nodeName)); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", "eth0", "type", "bridge"}, // every kernel that supports pods has bridges
		{"addr", "add", n.Address + "/24", "dev", "eth0"},
		{"link", "set", "eth0", "up"},
		{"route", "add", "default", "dev", "eth0"}, // the kubelet needs a default route
	} {
		if out, err := exec.Command(n.Busybox, append([]string{"ip"}, args...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
}

// makeCgroups creates the cluster's control group in each hierarchy. Two kubelets in one group would
// each remove the pods of the other.
func (n *nodeConfig) makeCgroups() error {
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
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} { // version 1 does not inherit them
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

// runAll runs the programs and restarts those that end, except programs with a file in the directory
// hold.
func (n *nodeConfig) runAll() {
	var all sync.WaitGroup
	for _, p := range n.listPrograms() {
		all.Go(func() {
			for {
				n.runOnce(p)
				time.Sleep(pause)
			}
		})
	}
	all.Wait()
}

const pause = 50 * time.Millisecond

// runOnce runs a program until it ends or is held. While it runs, the directory run has a file with
// its name.
func (n *nodeConfig) runOnce(p program) {
	name := p.args[0]
	held := func() bool {
		_, err := os.Stat(n.filePath("hold", name))
		return err == nil
	}
	if held() {
		return
	}
	log, err := os.OpenFile(n.filePath("log", name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
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
	running := n.filePath("run", name)
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

// programDir returns the directory of this program, which has links with the other programs' names.
func programDir() string {
	self, err := os.Executable()
	if err != nil {
		panic(err) // without /proc
	}
	return filepath.Dir(self)
}
