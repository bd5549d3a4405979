package filesync_test

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/storage/filesync"
)

// The first push, the next push and the pull of ten thousand files take little memory.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: ten thousand files")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(20)) // measure live memory, not garbage
	const most = 64<<20/10 + 4<<20                   // bytes of heap: a hundred thousand files may take 64 MiB, plus buffers
	r := newRemote(t, openBucket(t), filesync.Options{})
	p, q := newPlace(t), newPlace(t)
	for d := range 10 {
		dir := p.filePath(fmt.Sprintf("some/where/deep/directory %d", d))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for f := range 1000 {
			if err := os.WriteFile(fmt.Sprintf("%s/a file of the number %d", dir, f), fmt.Appendf(nil, "%d %d", d, f), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"the first push", func() { p.push(r) }},
		{"a push of nothing new", func() { p.push(r) }},
		{"a push of one file", func() { p.writeText("one", "new"); p.push(r) }},
		{"the first pull", func() { q.pull(r, filesync.PullOptions{}) }},
		{"a pull of one file", func() { p.writeText("one", "newer"); p.push(r); q.pull(r, filesync.PullOptions{}) }},
	} {
		runtime.GC()
		var before runtime.MemStats
		runtime.ReadMemStats(&before)
		var peak atomic.Uint64
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for {
				var now runtime.MemStats
				runtime.ReadMemStats(&now)
				peak.Store(max(peak.Load(), now.HeapAlloc))
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
			}
		}()
		begin := time.Now()
		step.do()
		took := time.Since(begin)
		close(stop)
		<-done
		grown := int64(peak.Load()) - int64(before.HeapAlloc)
		t.Logf("%s: %d MiB, %v", step.name, grown>>20, took)
		if grown > most {
			t.Errorf("%s took %d MiB of heap, want at most %d", step.name, grown>>20, most>>20)
		}
	}
}
