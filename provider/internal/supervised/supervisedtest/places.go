//go:build linux

package supervisedtest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
)

// Places says where a provider's sandboxes are on the machine: fields of its options.
type Places struct {
	Dir, RunDir string
	Cgroup      string // the prefix of the names of cgroups
}

// CheckEmpty checks that nothing of a sandbox is left on disk.
func (p Places) CheckEmpty(t testing.TB) {
	t.Helper()
	if left := p.ListFiles(t); len(left) > 0 {
		t.Errorf("left behind: %s", strings.Join(left, " "))
	}
}

// ListFiles lists what sandboxes have on disk.
func (p Places) ListFiles(t testing.TB) (left []string) {
	t.Helper()
	dirs := []string{p.RunDir}
	for _, sub := range []string{"sandboxes", "records", "volumes/default", "names/default", "snapshots"} {
		dirs = append(dirs, filepath.Join(p.Dir, sub))
	}
	for _, dir := range dirs {
		for _, name := range ListDir(t, dir) {
			left = append(left, filepath.Join(dir, name))
		}
	}
	return left
}

// ListDir returns the names in a directory; none if it does not exist.
func ListDir(t testing.TB, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// ShortDir returns a new directory with a short path, for sockets.
func ShortDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "atoll")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// ListCgroups lists the cgroups whose names begin with prefix.
func ListCgroups(t testing.TB, prefix string) []string {
	t.Helper()
	var list []string
	for _, pattern := range []string{"/sys/fs/cgroup/" + prefix + "*", "/sys/fs/cgroup/*/" + prefix + "*", "/sys/fs/cgroup/*/*/" + prefix + "*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			if info, err := os.Stat(path); err == nil && info.IsDir() {
				list = append(list, "cgroup "+path)
			}
		}
	}
	return list
}

// VolumePath returns the path of a file in the sandbox's data volume.
func (p Places) VolumePath(sb atoll.Sandbox, name string) string {
	return filepath.Join(statedir.Dir(p.Dir).Volume("default", statedir.DataVolume(sb.ID())), name)
}

// RecordPath returns the path of the sandbox's record.
func (p Places) RecordPath(sb atoll.Sandbox) string { return statedir.Dir(p.Dir).Record(sb.ID()) }

// A Record is the part of a sandbox's record on disk that tests read or forge.
type Record map[string]any

// ReadRecord reads the sandbox's record.
func (l *Lab) ReadRecord(sb atoll.Sandbox) (r Record) {
	l.T.Helper()
	data, err := os.ReadFile(l.RecordPath(sb))
	l.Must("read record", err)
	l.Must("read record", json.Unmarshal(data, &r))
	return r
}

// SupervisorOf returns the PID of the sandbox's supervisor.
func (l *Lab) SupervisorOf(sb atoll.Sandbox) int {
	l.T.Helper()
	supervisor, _ := l.ReadRecord(sb)["keeper"].(map[string]any)
	pid, _ := supervisor["pid"].(float64)
	if pid <= 1 {
		l.T.Fatalf("no supervisor in the record: %v", supervisor)
	}
	return int(pid)
}

// BeatScript shows that its sandbox runs: it appends to a file.
const BeatScript = "while :; do echo >> /work/beat; sleep 0.02; done"

// AwaitBeat waits until BeatScript has appended something more.
func (l *Lab) AwaitBeat(sb atoll.Sandbox) {
	l.T.Helper()
	size := func() int64 {
		info, err := os.Stat(l.VolumePath(sb, "beat"))
		if err != nil {
			return 0
		}
		return info.Size()
	}
	before := size()
	l.Poll(func() error {
		if size() == before {
			return fmt.Errorf("what runs in the sandbox stands still")
		}
		return nil
	})
}
