package providertest

import (
	"os"
	"strconv"
	"strings"
	"sync"
)

// A census remembers the processes that belong to this one, as it found them
// whenever it was taken: its descendants, and those that share a namespace with
// one of them which this process is not in. It finds them again when they have
// lost their parents, as a sentry whose keeper has died.
type census struct {
	mu    sync.Mutex
	known map[processKey]bool // there before the census began
	found map[processKey]bool
}

// A kin is a process: its PID can be given to another, but not with the same
// start.
type processKey struct {
	pid   int
	start string // in ticks since boot
}

// newCensus begins a census of those who come from now on.
func newCensus() (*census, error) {
	c := &census{known: map[processKey]bool{}, found: map[processKey]bool{}}
	now, err := listRelated()
	for _, k := range now {
		c.known[k] = true
	}
	return c, err
}

// recordProcesses notes who is there now. What cannot be listed is not noted.
func (c *census) recordProcesses() {
	now, _ := listRelated()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range now {
		c.found[k] = !c.known[k]
	}
}

// listAlive lists those found that have not ended.
func (c *census) listAlive() ([]string, error) {
	c.recordProcesses()
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for k, counts := range c.found {
		if p, ok := readProcess(k.pid); ok && counts && p.processKey == k && p.state != "Z" {
			names = append(names, describeProcess(k.pid))
		}
	}
	return names, nil
}

// describeProcess names a process by its PID and command line.
func describeProcess(pid int) string {
	cmd, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline") // empty when it has gone
	return strconv.Itoa(pid) + " (" + strings.TrimSpace(strings.ReplaceAll(string(cmd), "\x00", " ")) + ")"
}

// An entry is what the kernel tells of a process; see proc_pid_stat(5).
type processEntry struct {
	processKey
	parent int
	state  string
}

func readProcess(pid int) (processEntry, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return processEntry{}, false
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:])) // the name before may hold anything
	if len(f) < 20 {
		return processEntry{}, false
	}
	parent, err := strconv.Atoi(f[1])
	return processEntry{processKey{pid, f[19]}, parent, f[0]}, err == nil
}

// listRelated lists the descendants of this process, and who shares with one of
// them a namespace that this process is not in.
func listRelated() ([]processKey, error) {
	all, err := listProcesses()
	if err != nil {
		return nil, err
	}
	related := map[int]bool{os.Getpid(): true}
	for grown := true; grown; {
		grown = false
		for _, e := range all {
			if related[e.parent] && !related[e.pid] {
				related[e.pid], grown = true, true
			}
		}
	}
	delete(related, os.Getpid())
	foreign, ours := map[string]bool{}, listNamespaces(os.Getpid())
	for pid := range related {
		for ns := range listNamespaces(pid) {
			if !ours[ns] {
				foreign[ns] = true
			}
		}
	}
	var list []processKey
	for _, e := range all {
		if related[e.pid] || e.pid != os.Getpid() && sharesNamespace(e.pid, foreign) {
			list = append(list, e.processKey)
		}
	}
	return list, nil
}

func listProcesses() ([]processEntry, error) {
	dir, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []processEntry
	for _, d := range dir {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		if e, ok := readProcess(pid); ok {
			all = append(all, e)
		}
	}
	return all, nil
}

// listNamespaces are those that a process is in, as "mnt:[4026531841]"; none when
// it is not for this process to see.
func listNamespaces(pid int) map[string]bool {
	dir := "/proc/" + strconv.Itoa(pid) + "/ns/"
	links, _ := os.ReadDir(dir)
	all := map[string]bool{}
	for _, l := range links {
		if ns, err := os.Readlink(dir + l.Name()); err == nil {
			all[ns] = true
		}
	}
	return all
}

func sharesNamespace(pid int, foreign map[string]bool) bool {
	if len(foreign) == 0 {
		return false
	}
	for ns := range listNamespaces(pid) {
		if foreign[ns] {
			return true
		}
	}
	return false
}
