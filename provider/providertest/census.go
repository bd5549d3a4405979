package providertest

import (
	"os"
	"strconv"
	"strings"
	"sync"
)

// A census remembers the processes that belong to this one: its descendants, and those that share a
// namespace with a descendant but not with this process. It still finds them when they have lost their
// parents, for example a sentry whose supervisor has died.
type census struct {
	mu    sync.Mutex
	known map[processKey]bool // existed before the census began
	found map[processKey]bool // the values are false for known ones
}

// A processKey identifies a process. The kernel can reuse the PID, but not with the same start time.
type processKey struct {
	pid   int
	start string // in ticks since boot
}

// newCensus begins a census of processes that start from now on.
func newCensus() (*census, error) {
	c := &census{known: map[processKey]bool{}, found: map[processKey]bool{}}
	running, err := listRelated()
	for _, k := range running {
		c.known[k] = true
	}
	return c, err
}

// recordProcesses records the processes that exist now. It ignores errors.
func (c *census) recordProcesses() {
	now, _ := listRelated()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range now {
		c.found[k] = !c.known[k]
	}
}

// listAlive records the processes that exist now, and returns all recorded ones that have not ended.
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

// describeProcess returns the PID and the command line of a process.
func describeProcess(pid int) string {
	cmd, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline") // empty if it has ended
	return strconv.Itoa(pid) + " (" + strings.TrimSpace(strings.ReplaceAll(string(cmd), "\x00", " ")) + ")"
}

// A processEntry holds fields of /proc/PID/stat; see proc_pid_stat(5).
type processEntry struct {
	processKey
	parent int
	state  string
}

// readProcess reads the entry of a process. It returns false if the process has ended.
func readProcess(pid int) (processEntry, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return processEntry{}, false
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:])) // the name before may contain anything
	if len(f) < 20 {
		return processEntry{}, false
	}
	parent, err := strconv.Atoi(f[1])
	return processEntry{processKey{pid, f[19]}, parent, f[0]}, err == nil
}

// listRelated returns the descendants of this process, and the processes that share a namespace with
// one of them but not with this process.
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

// listProcesses returns all processes of this machine.
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

// listNamespaces returns the namespaces of a process, as "mnt:[4026531841]". It returns none if this
// process may not see them.
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

// sharesNamespace reports whether the process is in one of the namespaces.
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
