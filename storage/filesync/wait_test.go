package filesync_test

import (
	"context"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/storage/filesync"
)

// A syncLog collects a log that several goroutines use.
type syncLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *syncLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *syncLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// On the machine of a killed holder, the next program takes the lock at once.
func TestHolderKilledHere(t *testing.T) {
	for _, step := range []string{"locked", "object", "state"} {
		t.Run(step, func(t *testing.T) {
			s := newScene(t, t.TempDir())
			dir := newPlace(t)
			dir.writeText("killed", strings.Repeat("x", 300<<10))
			runKilled(t, "push", step, 1, s.store, dir.dir)
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(30*time.Second))
			defer cancel()
			var log syncLog
			patient := newRemote(t, openStore(t, s.store), filesync.Options{Log: textLog(&log)}.WithExpire(time.Hour))
			s.editor.writeText("after", step)
			st, err := patient.Push(ctx, s.editor.Tree, filesync.PushOptions{})
			if err != nil || strings.Contains(log.String(), "waiting") {
				t.Fatalf("Push: %v; the log has %s", err, log.String())
			}
			s.was[st.Version] = s.editor.content()
			s.checkVersions(t)
		})
	}
}

// A waiting program says for whom it waits, and for how long. A live holder keeps the
// lock.
func TestWaitIsReported(t *testing.T) {
	store := t.TempDir()
	for _, kind := range []string{"seen", "unseen"} {
		t.Run(kind, func(t *testing.T) {
			log := &syncLog{}
			locked, goOn := make(chan struct{}), make(chan struct{})
			var once sync.Once
			open := func(o filesync.Options) *filesync.Remote {
				b := openStore(t, store)
				if kind == "unseen" { // as in object storage
					b = hideParts{b}
				}
				return newRemote(t, b, o.WithExpire(time.Hour))
			}
			holder := open(filesync.Options{Owner: "the holder"}.WithStep(func(name string) {
				if name == "locked" {
					once.Do(func() { close(locked); <-goOn })
				}
			}))
			p, q := newPlace(t), newPlace(t)
			p.writeText("p", kind)
			q.writeText("q", kind)
			var all sync.WaitGroup
			all.Go(func() { p.push(holder) })
			<-locked
			waiting := open(filesync.Options{Log: textLog(log)})
			all.Go(func() { q.push(waiting) })
			limit := time.Now().Add(testenv.Scale(30 * time.Second))
			for !strings.Contains(log.String(), "waiting") && time.Now().Before(limit) {
				time.Sleep(10 * time.Millisecond)
			}
			close(goOn)
			all.Wait()
			want := regexp.MustCompile(`waiting for the holder, at work here since \d\d:\d\d:\d\d: if it has died, the wait ends at \d\d:\d\d:\d\d"`)
			if got := log.String(); len(want.FindAllString(got, -1)) != 1 {
				t.Errorf("the log has %s, want once %s", got, want)
			}
		})
	}
}
