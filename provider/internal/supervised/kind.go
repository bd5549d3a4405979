package supervised

import (
	"slices"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A kind is one kind of sandbox in a stock. Kinds differ in their limits, which an engine gets at its boot. A new kind wants no
// sandbox until the second request for it: many limits are asked for only once.
type kind struct {
	limits atoll.Resources
	demand
	retry time.Time     // no boot before, after a failure
	pause time.Duration // after the next failure
}

// maxKinds is the most kinds of a stock.
const maxKinds = 8

func newKind(limits atoll.Resources, d demand) *kind {
	return &kind{limits: limits, demand: d, pause: firstPause}
}

// addKind returns the kinds with one more. If there are too many, it drops the one that was not asked for the longest; but not
// the first.
func addKind(kinds []*kind, k *kind) []*kind {
	if len(kinds) == maxKinds {
		oldest := slices.MinFunc(kinds[1:], func(a, b *kind) int { return a.asked.Compare(b.asked) })
		kinds = slices.DeleteFunc(kinds, func(k *kind) bool { return k == oldest })
	}
	return append(kinds, k)
}

// ageKinds adapts the demand for each kind to the time without requests. It returns the kinds without those that nobody has
// asked for in an hour, except the first.
func ageKinds(kinds []*kind, now time.Time) []*kind {
	for _, k := range kinds {
		k.noteTime(now)
	}
	first := kinds[0]
	return slices.DeleteFunc(kinds, func(k *kind) bool { return k != first && now.Sub(k.asked) > quietTime })
}

// shareStock returns how many sandboxes of each kind there should be, and not more than most together: one of each that wants
// any, then as many more as each wants.
func shareStock(kinds []*kind, most int, now time.Time) map[*kind]int {
	share := make(map[*kind]int, len(kinds))
	sorted := sortKinds(kinds, now)
	for _, enough := range []int{1, most} {
		for _, k := range sorted {
			n := min(k.want-share[k], enough, most)
			share[k] += n
			most -= n
		}
	}
	return share
}

// chooseKind returns the kind to boot next, of those of which some are missing: the first one, unless its last boot has failed
// just now. It returns nil if none is missing.
func chooseKind(kinds []*kind, missing map[*kind]int, now time.Time) (next *kind) {
	for _, k := range sortKinds(kinds, now) {
		if missing[k] > 0 && (next == nil || next.retry.After(now) && k.retry.Before(next.retry)) {
			next = k
		}
	}
	return next
}

// sortKinds returns first the kinds that were asked for within calmTime, in the order of kinds: if it changed with each request, a
// small stock would remove a sandbox for each. The others follow, the one that was asked for last first.
func sortKinds(kinds []*kind, now time.Time) []*kind {
	since := now.Add(-calmTime)
	return slices.SortedStableFunc(slices.Values(kinds), func(a, b *kind) int {
		if a.asked.After(since) && b.asked.After(since) {
			return 0
		}
		return b.asked.Compare(a.asked)
	})
}
