package filesync_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/seed46cd37a8/atoll/storage/filesync"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// names holds the paths of random edits: few, so that they collide, and such that
// directories and files replace each other.
var names = []string{
	"a", "a-b", "a/b", "a/b/c", "a/d", "b", "b/ x", "b/-rf", "c'\"", "d\ne", "d\ne/f", "\xff", "\xff/g", "e.txt", "long/" + string(make128()),
}

func make128() []byte { return []byte(fmt.Sprintf("%0128d", 0)) }

// editFile makes a random change; some changes are impossible and do nothing.
func (p *testDir) editFile(r *rand.Rand) {
	name := p.filePath(names[r.IntN(len(names))])
	switch r.IntN(10) {
	case 0, 1:
		os.RemoveAll(name)
	case 2:
		os.RemoveAll(name)
		os.MkdirAll(name, 0o755)
	case 3:
		os.RemoveAll(name)
		os.MkdirAll(filepath.Dir(name), 0o755)
		os.Symlink(names[r.IntN(len(names))], name)
	case 4:
		other := p.filePath(names[r.IntN(len(names))])
		os.Rename(name, other)
	case 5:
		if info, err := os.Lstat(name); err == nil && info.Mode()&os.ModeSymlink == 0 {
			os.Chmod(name, []os.FileMode{0o700, 0o755, 0o640 | info.Mode()&os.ModeDir>>25, 0o777}[r.IntN(4)])
		}
	default:
		if info, err := os.Lstat(name); err == nil && !info.Mode().IsRegular() {
			os.RemoveAll(name)
		}
		os.MkdirAll(filepath.Dir(name), 0o755)
		size := []int{0, 1, 100, 5000, 300 << 10}[r.IntN(5)]
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(r.IntN(256))
		}
		os.WriteFile(name, b, 0o644)
	}
}

// Whatever happens to a directory, each push can be pulled again, byte for byte; and a
// place that only pulls equals the one that pushes.
func TestRandomEdits(t *testing.T) {
	rounds := 30
	if testing.Short() {
		rounds = 5
	}
	testRandomEdits(t, rounds, openBucket)
}

func testRandomEdits(t *testing.T, rounds int, open func(t testing.TB) objectstore.Bucket) {
	for seed := range uint64(rounds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			r := newRemote(t, open(t), filesync.Options{})
			a, mirror := newPlace(t), newPlace(t)
			was := map[int64]string{}
			for range 8 {
				for range rnd.IntN(12) {
					a.editFile(rnd)
				}
				st := a.push(r)
				if st.Failed > 0 {
					t.Fatalf("Push: %+v", st)
				}
				content := a.content()
				if old, ok := was[st.Version]; ok && old != content {
					t.Fatalf("there were changes, and no version: %s", firstDifference(old, content))
				}
				was[st.Version] = content
				if rnd.IntN(2) == 0 {
					if st := mirror.pull(r, filesync.PullOptions{}); st.Failed > 0 || len(st.Conflicts) > 0 {
						t.Fatalf("Pull: %+v", st)
					}
					checkEqual(t, a, mirror)
				}
			}
			for version, content := range was {
				fresh := newPlace(t)
				if st := fresh.pull(r, filesync.PullOptions{Version: version}); st.Failed > 0 || len(st.Conflicts) > 0 {
					t.Fatalf("Pull: %+v", st)
				}
				if got := fresh.content(); got != content {
					t.Errorf("version %d: %s", version, firstDifference(content, got))
				}
			}
			for _, version := range slices.Sorted(mapKeys(was)) { // one after the other, in one place
				mirror.pull(r, filesync.PullOptions{Version: version})
				if got := mirror.content(); got != was[version] {
					t.Errorf("version %d after others: %s", version, firstDifference(was[version], got))
				}
			}
		})
	}
}

// Two places that edit, push and pull at random lose nothing that they did not change
// themselves, and reported pushes can be pulled again.
func TestTwoEditors(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 2))
			r := newRemote(t, openBucket(t), filesync.Options{})
			places := []*testDir{newPlace(t), newPlace(t)}
			was := map[int64]string{}
			for range 20 {
				p := places[rnd.IntN(2)]
				switch rnd.IntN(3) {
				case 0:
					for range rnd.IntN(6) {
						p.editFile(rnd)
					}
				case 1:
					st := p.push(r)
					was[st.Version] = p.content()
				case 2:
					p.pull(r, filesync.PullOptions{})
				}
			}
			for version, content := range was {
				fresh := newPlace(t)
				fresh.pull(r, filesync.PullOptions{Version: version})
				if got := fresh.content(); version > 0 && got != content {
					t.Errorf("version %d: %s", version, firstDifference(content, got))
				}
			}
		})
	}
}

func mapKeys(m map[int64]string) func(func(int64) bool) {
	return func(yield func(int64) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}
