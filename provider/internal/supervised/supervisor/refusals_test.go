package supervisor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

func openLog(t *testing.T, dir string) *refusalLog {
	t.Helper()
	l := newRefusalLog(dir, func(err error) { t.Error(err) })
	t.Cleanup(l.closeFile)
	return l
}

// A flood of different names costs no more than the latest ones, in memory and on disk. All are counted.
func TestRefusalsAreBounded(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir)
	const writers, each = 8, 1250
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				l.addRefusal(atoll.Refusal{Host: fmt.Sprintf("n%d-%d.example", w, i), Protocol: "dns", Reason: "no"})
				if i%100 == 0 {
					l.listRefusals()
				}
			}
		})
	}
	wg.Wait()
	all := l.listRefusals()
	if all.Total != writers*each || len(all.List) != atoll.MaxRefusals || cap(l.all.List) > 4*atoll.MaxRefusals {
		t.Errorf("%d refusals in %d entries, room for %d", all.Total, len(all.List), cap(l.all.List))
	}
	l.closeFile()
	again, err := LoadRefusals(dir)
	if err != nil || again.Total != all.Total || len(again.List) != len(all.List) {
		t.Errorf("the file has %d refusals in %d entries, %v", again.Total, len(again.List), err)
	}
}

// The file has a refusal soon, also if nothing ends in order. The next run continues the counts.
func TestRefusalsOfNextRun(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir)
	one := atoll.Refusal{Address: "192.0.2.1", Port: 1, Protocol: "tcp", Reason: "no"}
	l.addRefusal(one)
	for deadline := time.Now().Add(testenv.Scale(10 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
		if all, err := LoadRefusals(dir); err != nil || all.Total == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the file was not written")
		}
	}
	next := openLog(t, dir)
	next.addRefusal(one)
	all := next.listRefusals()
	if len(all.List) != 1 || all.Total != 2 || all.List[0].Count != 2 || !all.List[0].Last.After(all.List[0].First) {
		t.Errorf("got %+v, want one refusal twice", all)
	}
}

// Nothing is written after the end: the directory may be gone, or belong to another run.
func TestRefusalsAfterEnd(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir)
	l.closeFile()
	l.addRefusal(atoll.Refusal{Host: "late.example", Protocol: "dns", Reason: "no"})
	l.writeFile()
	if _, err := os.Stat(filepath.Join(dir, refusalsName)); err == nil {
		t.Error("the file was written after the end")
	}
}

// A damaged file does not prevent a start, and is replaced.
func TestRefusalsOfDamagedFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, refusalsName), []byte(`{"total": 7, "list": [`), 0o600); err != nil {
		t.Fatal(err)
	}
	var failed error
	l := newRefusalLog(dir, func(err error) { failed = err })
	l.addRefusal(atoll.Refusal{Host: "a.example", Protocol: "dns", Reason: "no"})
	l.closeFile()
	data, err := os.ReadFile(filepath.Join(dir, refusalsName))
	var all atoll.Refusals
	if failed == nil || err != nil || json.Unmarshal(data, &all) != nil || all.Total != 1 {
		t.Errorf("reported %v, then wrote %s, %v", failed, data, err)
	}
}
