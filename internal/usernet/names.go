package usernet

import (
	"net/netip"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll/internal/reservedip"
)

// An answer is good for its TTL, but for at least minTrust: programs keep the
// addresses they were given for longer than they should, some for ever.
const (
	minTrust = 10 * time.Minute
	maxTrust = 24 * time.Hour
	maxNames = 4096 // addresses remembered; beyond it the one that expires first is forgotten
)

// nameTable remembers which addresses the DNS server gave as answers for names
// that the policy lists, so that a dial to one of them can be told from a dial
// to any other.
type nameTable struct {
	now func() time.Time

	mu      sync.Mutex
	entries map[netip.Addr]*nameEntry // guarded by mu
}

type nameEntry struct{ until [byName + 1]time.Time } // by trust

func (e *nameEntry) expires() time.Time {
	if e.until[byName].After(e.until[byWildcard]) {
		return e.until[byName]
	}
	return e.until[byWildcard]
}

func newNameTable() *nameTable {
	return &nameTable{now: time.Now, entries: map[netip.Addr]*nameEntry{}}
}

// add remembers addr as an answer for a name that is listed as t.
func (nt *nameTable) add(addr netip.Addr, t trust, ttl time.Duration) {
	if t == unlisted {
		return
	}
	addr = reservedip.Canonical(addr)
	nt.mu.Lock()
	defer nt.mu.Unlock()
	e := nt.entries[addr]
	if e == nil {
		nt.makeRoom()
		e = &nameEntry{}
		nt.entries[addr] = e
	}
	if until := nt.now().Add(min(max(ttl, minTrust), maxTrust)); until.After(e.until[t]) {
		e.until[t] = until
	}
}

// makeRoom drops what has expired, and one more if that is not enough. The
// caller holds mu.
func (nt *nameTable) makeRoom() {
	if len(nt.entries) < maxNames {
		return
	}
	var first netip.Addr
	for addr, e := range nt.entries {
		if e.expires().Before(nt.now()) {
			delete(nt.entries, addr)
		} else if f := nt.entries[first]; f == nil || e.expires().Before(f.expires()) {
			first = addr
		}
	}
	if len(nt.entries) >= maxNames {
		delete(nt.entries, first)
	}
}

// find returns the highest trust that addr has now.
func (nt *nameTable) find(addr netip.Addr) trust {
	nt.mu.Lock()
	defer nt.mu.Unlock()
	e := nt.entries[reservedip.Canonical(addr)]
	if e == nil {
		return unlisted
	}
	for t := byName; t > unlisted; t-- {
		if nt.now().Before(e.until[t]) {
			return t
		}
	}
	return unlisted
}
