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
	known map[kin]bool // there before the census began
	found map[kin]bool
}

// A kin is a process: its PID can be given to another, but not with the same
// start.
type kin struct {
	pid   int
	start string // in ticks since boot
}

// newCensus begins a census of those who come from now on.
func newCensus() (*census, error) {
	c := &census{known: map[kin]bool{}, found: map[kin]bool{}}
	now, err := kindred()
	for _, k := range now {
		c.known[k] = true
	}
	return c, err
}

// take notes who is there now. What cannot be listed is not noted.
func (c *census) take() {
	now, _ := kindred()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range now {
		c.found[k] = !c.known[k]
	}
}

// alive lists those found that have not ended.
func (c *census) alive() ([]string, error) {
	c.take()
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for k, counts := range c.found {
		if p, ok := lookUp(k.pid); ok && counts && p.kin == k && p.state != "Z" {
			names = append(names, describe(k.pid))
		}
	}
	return names, nil
}

// describe names a process by its PID and command line.
func describe(pid int) string {
	cmd, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline") // empty when it has gone
	return strconv.Itoa(pid) + " (" + strings.TrimSpace(strings.ReplaceAll(string(cmd), "\x00", " ")) + ")"
}

// An entry is what the kernel tells of a process; see proc_pid_stat(5).
type entry struct {
	kin
	parent int
	state  string
}

func lookUp(pid int) (entry, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return entry{}, false
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:])) // the name before may hold anything
	if len(f) < 20 {
		return entry{}, false
	}
	parent, err := strconv.Atoi(f[1])
	return entry{kin{pid, f[19]}, parent, f[0]}, err == nil
}

// kindred lists the descendants of this process, and who shares with one of
// them a namespace that this process is not in.
func kindred() ([]kin, error) {
	all, err := everybody()
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
	foreign, ours := map[string]bool{}, namespaces(os.Getpid())
	for pid := range related {
		for ns := range namespaces(pid) {
			if !ours[ns] {
				foreign[ns] = true
			}
		}
	}
	var list []kin
	for _, e := range all {
		if related[e.pid] || e.pid != os.Getpid() && sharesOne(e.pid, foreign) {
			list = append(list, e.kin)
		}
	}
	return list, nil
}

func everybody() ([]entry, error) {
	dir, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []entry
	for _, d := range dir {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		if e, ok := lookUp(pid); ok {
			all = append(all, e)
		}
	}
	return all, nil
}

// namespaces are those that a process is in, as "mnt:[4026531841]"; none when
// it is not for this process to see.
func namespaces(pid int) map[string]bool {
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

func sharesOne(pid int, foreign map[string]bool) bool {
	if len(foreign) == 0 {
		return false
	}
	for ns := range namespaces(pid) {
		if foreign[ns] {
			return true
		}
	}
	return false
}
