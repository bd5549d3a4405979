//go:build linux

package kubernetes_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/kubernetes"
)

// rewrite changes the record of a sandbox, like a program that dies then.
func rewrite(t *testing.T, p *kubernetes.Provider, id string, change map[string]any) {
	t.Helper()
	core, _, done := clients(t)
	defer done()
	maps := core.ConfigMaps(optionsOf(p).Namespace)
	object, err := maps.Get(t.Context(), optionsOf(p).Prefix+"-"+id, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var note map[string]any
	if err := json.Unmarshal([]byte(object.Data["sandbox"]), &note); err != nil {
		t.Fatal(err)
	}
	for key, value := range change {
		note[key] = value
	}
	text, err := json.Marshal(note)
	if err != nil {
		t.Fatal(err)
	}
	object.Data["sandbox"] = string(text)
	if _, err := maps.Update(t.Context(), object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// lively is a main process that adds a line to a file in each run.
var lively = []string{"/bin/busybox", "sh", "-c", "echo life >> /work/lives; exec sleep 3600"}

// If two programs start a sandbox at once, one creates its pod, and both find it running.
func TestTwoStarts(t *testing.T) {
	a := provider(t)
	b := reopen(t, a)
	defer b.Close()
	sb := created(t, a, atoll.Spec{Cmd: lively})
	const rounds = 3
	for range rounds {
		if err := sb.Stop(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		var both sync.WaitGroup
		for _, p := range []atoll.Provider{a, b} {
			both.Go(func() {
				there, err := p.Get(t.Context(), sb.ID())
				if err == nil {
					err = there.Start(t.Context())
				}
				if err != nil {
					t.Errorf("Start: %v", err)
				}
			})
		}
		both.Wait()
		if st, err := sb.Status(t.Context()); err != nil || st.State != atoll.StateRunning {
			t.Fatalf("it is %s (%s), %v", st.State, st.Reason, err)
		}
	}
	if got := says(t, sb, "wc -l < /work/lives"); strings.TrimSpace(got) != "4" {
		t.Errorf("it has lived %s times, want %d", strings.TrimSpace(got), rounds+1)
	}
}

// A program that dies after it has created a pod, and before it records the start, leaves a pod
// that is deleted. A program that dies before that makes others wait only for a while.
func TestStarterDies(t *testing.T) {
	p := provider(t)
	sb := created(t, p, atoll.Spec{Cmd: lively})
	rewrite(t, p, sb.ID(), map[string]any{"state": "stopped", "run": "", "starter": "dead", "until": time.Now().Add(-time.Second)})
	other := reopen(t, p) // it sweeps when it opens
	defer other.Close()
	if _, err := other.List(t.Context(), atoll.Filter{}); err != nil {
		t.Fatal(err)
	}
	lab(t).Kubectl(t, "wait", "pod/"+optionsOf(p).Prefix+"-"+sb.ID(), "--for=delete", "--timeout="+testenv.Scale(2*time.Minute).String())
	becomes(t, sb, time.Minute, "stopped", func(st atoll.Status) bool { return st.State == atoll.StateStopped })

	const held = 3 * time.Second
	until := time.Now().Add(held)
	rewrite(t, p, sb.ID(), map[string]any{"starter": "dead", "until": until})
	if err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if time.Now().Before(until) {
		t.Error("it was started while somebody else was at it")
	}
	if got := says(t, sb, "wc -l < /work/lives"); strings.TrimSpace(got) != "2" {
		t.Errorf("it has lived %s times, want 2", strings.TrimSpace(got))
	}
}

// The exit and the output of a failed main process are known after its pod is gone.
func TestFailureIsWrittenDown(t *testing.T) {
	p := provider(t)
	sb := created(t, p, atoll.Spec{Cmd: []string{"/bin/busybox", "sh", "-c", "echo last words; sleep 1; exit 3"}})
	failed := func(st atoll.Status) bool {
		return st.State == atoll.StateFailed && st.Exit != nil && st.Exit.Code == 3
	}
	was := becomes(t, sb, time.Minute, "failed with 3", failed)
	name := optionsOf(p).Prefix + "-" + sb.ID()
	lab(t).Kubectl(t, "wait", "configmap/"+name, "--for=jsonpath={.binaryData.stdout}", "--timeout="+testenv.Scale(2*time.Minute).String())
	crash(t, p, sb)
	lab(t).Kubectl(t, "wait", "pod/"+name, "--for=delete", "--timeout="+testenv.Scale(2*time.Minute).String())
	st := becomes(t, sb, time.Minute, "failed with 3", failed)
	if st.Reason != was.Reason || !st.Stopped.Equal(was.Stopped) {
		t.Errorf("it stopped at %s (%s), and at %s (%s) when its pod was there", st.Stopped, st.Reason, was.Stopped, was.Reason)
	}
	main, err := sb.Process(t.Context(), atoll.MainProcess)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := main.Attach(t.Context(), &atoll.Attachment{Stdout: &out}); err != nil || out.String() != "last words\n" {
		t.Errorf("it printed %q, %v", out.String(), err)
	}
}

// A sandbox with AutoRemove is also removed if its pod was deleted.
func TestAutoRemoveOfADeletedPod(t *testing.T) {
	p := provider(t)
	sb := created(t, p, atoll.Spec{AutoRemove: true, Cmd: []string{"/bin/busybox", "sleep", "3600"}})
	crash(t, p, sb)
	for end := time.Now().Add(testenv.Scale(2*time.Minute) + atoll.AutoRemoveDelay); ; time.Sleep(100 * time.Millisecond) {
		_, err := sb.Status(t.Context())
		if errors.Is(err, atoll.ErrNotFound) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("it is still there: %v", err)
		}
	}
}
