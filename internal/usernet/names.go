package usernet

import (
	"net/netip"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll/internal/reservedip"
)

// An answer is valid for its TTL, but for at least minTrust: programs use addresses for longer than
// they should, some for ever.
const (
	minTrust = 10 * time.Minute
	maxTrust = 24 * time.Hour
	maxNames = 4096 // addresses in the table; beyond it the one that expires first is dropped
)

// nameTable records the addresses that the DNS server gave as answers, to distinguish a dial to an
// answer for a name that the policy lists from a dial to any other, and to name the address.
type nameTable struct {
	now func() time.Time

	mu      sync.Mutex
	entries map[netip.Addr]*nameEntry // guarded by mu
}

type nameEntry struct {
	name  string                // the latest one, as people write it
	until [byName + 1]time.Time // by trust; the entry of a name that is not listed has expired already
}

// lastExpiry returns when the last trust in the address ends.
func (e *nameEntry) lastExpiry() time.Time {
	if e.until[byName].After(e.until[byWildcard]) {
		return e.until[byName]
	}
	return e.until[byWildcard]
}

func newNameTable() *nameTable {
	return &nameTable{now: time.Now, entries: map[netip.Addr]*nameEntry{}}
}

// addAnswer records addr as an answer for name, which is listed as t.
func (nt *nameTable) addAnswer(addr netip.Addr, name string, t trustLevel, ttl time.Duration) {
	addr = reservedip.Canonical(addr)
	nt.mu.Lock()
	defer nt.mu.Unlock()
	e := nt.entries[addr]
	if e == nil {
		nt.makeRoom()
		e = &nameEntry{}
		nt.entries[addr] = e
	}
	e.name = name
	if t == unlisted {
		return
	}
	if until := nt.now().Add(min(max(ttl, minTrust), maxTrust)); until.After(e.until[t]) {
		e.until[t] = until
	}
}

// makeRoom drops expired entries, and one more if that is not enough. The caller holds mu.
func (nt *nameTable) makeRoom() {
	if len(nt.entries) < maxNames {
		return
	}
	var first netip.Addr
	for addr, e := range nt.entries {
		if e.lastExpiry().Before(nt.now()) {
			delete(nt.entries, addr)
		} else if f := nt.entries[first]; f == nil || e.lastExpiry().Before(f.lastExpiry()) {
			first = addr
		}
	}
	if len(nt.entries) >= maxNames {
		delete(nt.entries, first)
	}
}

// findTrust returns the highest trust that addr has now.
func (nt *nameTable) findTrust(addr netip.Addr) trustLevel {
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

// findName returns the latest name for which addr was an answer, "" if there is none.
func (nt *nameTable) findName(addr netip.Addr) string {
	nt.mu.Lock()
	defer nt.mu.Unlock()
	if e := nt.entries[reservedip.Canonical(addr)]; e != nil {
		return e.name
	}
	return ""
}
