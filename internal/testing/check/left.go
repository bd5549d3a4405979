package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// startedByTests are the names of programs that a test must not leave running, and prefixes of such names.
var startedByTests = []string{
	"atoll", "atoll-*", "runsc", "runsc-*", "postgres", "kube", "kube-*", "kubelet", "kubectl", "etcd", "agent-sandbox-controller",
	"containerd*", "dockerd", "dagger", "dnsmasq", "engine", "qemu-system-*", "versitygw", "gofakes3",
}

// listThings returns the things that a test may leave behind: processes, mounts, control groups,
// network namespaces, and files in the directory tmp.
func listThings(tmp string) map[string]bool {
	things := map[string]bool{}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range processes {
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		arg0, _, _ := bytes.Cut(line, []byte{0})
		name := filepath.Base(string(arg0))
		if slices.ContainsFunc(startedByTests, func(pattern string) bool { ok, _ := filepath.Match(pattern, name); return ok }) {
			things[fmt.Sprintf("process %s %s", filepath.Base(dir), arg0)] = true
		}
		if ns, err := os.Readlink(filepath.Join(dir, "ns/net")); err == nil {
			things["network namespace "+ns] = true
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			things["mount "+fields[4]] = true
		}
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "atoll-") {
			things["cgroup "+path] = true
		}
		return nil // groups come and go
	})
	files, _ := os.ReadDir(tmp)
	for _, f := range files {
		things["file "+filepath.Join(tmp, f.Name())] = true
	}
	return things
}

// waitForLeftovers returns the things that are there now and were not before, sorted. It waits up to
// limit for them to go.
func waitForLeftovers(before map[string]bool, tmp string, limit time.Duration) []string {
	for deadline := time.Now().Add(limit); ; time.Sleep(200 * time.Millisecond) {
		var left []string
		for thing := range listThings(tmp) {
			if !before[thing] {
				left = append(left, thing)
			}
		}
		if len(left) == 0 || time.Now().After(deadline) {
			slices.Sort(left)
			return left
		}
	}
}
