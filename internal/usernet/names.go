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
	maxNames = 8192 // addresses and their listed names; beyond it the address that expires first is dropped
)

// nameTable records the addresses that the DNS server gave as answers, to distinguish a dial to an
// answer for a name that the policy lists from a dial to any other, and to name the address.
type nameTable struct {
	now func() time.Time

	mu       sync.Mutex
	entries  map[netip.Addr]*nameEntry // guarded by mu
	listings int                       // number of listed names in entries; guarded by mu
}

type nameEntry struct {
	latest string               // the latest name, as people write it
	listed map[string]time.Time // until when the answer is valid, by name; names that the policy does not list are not there
}

// lastExpiry returns when the last trust in the address ends; an address without any has expired already.
func (e *nameEntry) lastExpiry() (last time.Time) {
	for _, until := range e.listed {
		if until.After(last) {
			last = until
		}
	}
	return last
}

func newNameTable() *nameTable {
	return &nameTable{now: time.Now, entries: map[netip.Addr]*nameEntry{}}
}

// addAnswer records addr as an answer for name, which the policy lists or not.
func (nt *nameTable) addAnswer(addr netip.Addr, name string, listed bool, ttl time.Duration) {
	addr = reservedip.Canonical(addr)
	nt.mu.Lock()
	defer nt.mu.Unlock()
	if !nt.hasAnswer(addr, name, listed) && len(nt.entries)+nt.listings >= maxNames {
		nt.makeRoom()
	}
	e := nt.entries[addr]
	if e == nil {
		e = &nameEntry{listed: map[string]time.Time{}}
		nt.entries[addr] = e
	}
	e.latest = name
	if !listed {
		return
	}
	until := nt.now().Add(min(max(ttl, minTrust), maxTrust))
	old, known := e.listed[name]
	if !known {
		nt.listings++
	}
	if old.After(until) {
		until = old
	}
	e.listed[name] = until
}

// hasAnswer reports whether an answer for name, which the policy lists or not, needs no room. The caller holds mu.
func (nt *nameTable) hasAnswer(addr netip.Addr, name string, listed bool) bool {
	e := nt.entries[addr]
	if e == nil || !listed {
		return e != nil
	}
	_, known := e.listed[name]
	return known
}

// makeRoom drops the addresses that have expired, and one more if there are none. The caller holds mu.
func (nt *nameTable) makeRoom() {
	var first netip.Addr
	dropped := false
	for addr, e := range nt.entries {
		if e.lastExpiry().Before(nt.now()) {
			nt.dropAddress(addr)
			dropped = true
		} else if f := nt.entries[first]; f == nil || e.lastExpiry().Before(f.lastExpiry()) {
			first = addr
		}
	}
	if !dropped {
		nt.dropAddress(first)
	}
}

// dropAddress removes an entry. The caller holds mu.
func (nt *nameTable) dropAddress(addr netip.Addr) {
	nt.listings -= len(nt.entries[addr].listed)
	delete(nt.entries, addr)
}

// listedNames returns the listed names for which addr is an answer now.
func (nt *nameTable) listedNames(addr netip.Addr) (names []string) {
	nt.mu.Lock()
	defer nt.mu.Unlock()
	if e := nt.entries[reservedip.Canonical(addr)]; e != nil {
		for name, until := range e.listed {
			if nt.now().Before(until) {
				names = append(names, name)
			}
		}
	}
	return names
}

// hasName reports whether addr is an answer for a listed name now.
func (nt *nameTable) hasName(addr netip.Addr, name string) bool {
	nt.mu.Lock()
	defer nt.mu.Unlock()
	e := nt.entries[reservedip.Canonical(addr)]
	return e != nil && nt.now().Before(e.listed[name])
}

// findName returns the latest name for which addr was an answer, "" if there is none.
func (nt *nameTable) findName(addr netip.Addr) string {
	nt.mu.Lock()
	defer nt.mu.Unlock()
	if e := nt.entries[reservedip.Canonical(addr)]; e != nil {
		return e.latest
	}
	return ""
}
