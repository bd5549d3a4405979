package filesync_test

import (
	"context"
	"crypto/md5"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/tests3"
	"github.com/seed46cd37a8/atoll/storage/filesync"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
	"github.com/seed46cd37a8/atoll/storage/objectstore/s3"
)

// openAt opens a store for tests: a directory, or the bucket of a server at an
// endpoint.
func openAt(store string) (objectstore.Bucket, io.Closer, error) {
	if !strings.HasPrefix(store, "http://") {
		b, err := objectstore.OpenDir(store)
		return b, b, err
	}
	b, err := s3.Open(context.Background(), s3.Options{
		Bucket: tests3.Bucket, Endpoint: store, PathStyle: true, Backoff: 20 * time.Millisecond,
		Credentials: func(context.Context) (s3.Credentials, error) {
			return s3.Credentials{AccessKey: tests3.AccessKey, SecretKey: tests3.SecretKey}, nil
		},
	})
	return b, b, err
}

func openStore(t testing.TB, store string) objectstore.Bucket {
	t.Helper()
	b, c, err := openAt(store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return b
}

func openVersity(t testing.TB) objectstore.Bucket {
	t.Helper()
	return openStore(t, tests3.Versity(t))
}

// hideParts hides that a bucket stores large objects in another way.
type hideParts struct{ objectstore.Bucket }

func TestPushAndPullOnS3(t *testing.T) {
	t.Run("versitygw", func(t *testing.T) { testPushAndPull(t, openVersity(t)) })
	// It keeps only conditions of small objects.
	t.Run("gofakes3", func(t *testing.T) { testPushAndPull(t, hideParts{openStore(t, tests3.Fake(t))}) })
}

func TestRandomEditsOnS3(t *testing.T) {
	rounds := 5
	if testing.Short() {
		rounds = 1
	}
	t.Run("versitygw", func(t *testing.T) { testRandomEdits(t, rounds, openVersity) })
	t.Run("gofakes3", func(t *testing.T) {
		testRandomEdits(t, rounds, func(t testing.TB) objectstore.Bucket { return hideParts{openStore(t, tests3.Fake(t))} })
	})
}

// A service that ignores conditions never gets a version.
func TestStoreWithoutConditions(t *testing.T) {
	b := openStore(t, tests3.Fake(t))
	r := newRemote(t, b, filesync.Options{})
	p := newPlace(t)
	p.writeText("file", "1")
	_, err := r.Push(t.Context(), p.Tree, filesync.PushOptions{})
	if atoll.KindOf(err) != atoll.ErrUnsupported || !strings.Contains(err.Error(), "use another service") {
		t.Errorf("Push: %v", err)
	}
	for o, err := range b.List(t.Context(), "") {
		t.Errorf("there is %+v, %v", o, err)
	}
}

func TestKilledPushOnS3(t *testing.T)  { testKilledPush(t, tests3.Versity) }
func TestKilledPullOnS3(t *testing.T)  { testKilledPull(t, tests3.Versity) }
func TestKilledPruneOnS3(t *testing.T) { testKilledPrune(t, tests3.Versity) }

// childCommand returns this program with a job of its own.
func childCommand(t *testing.T, verb string, nth int, store, dir string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s - %d %s %s", killedEnv, verb, nth, store, dir), "TMPDIR="+t.TempDir())
	return cmd
}

// A push or a pull that is killed during any of its requests leaves intact versions,
// and the next one finishes.
func TestKilledInRequests(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: a process for each request")
	}
	endpoint := tests3.Versity(t)
	s := newScene(t, endpoint)
	proxy := tests3.NewProxy(t, endpoint)
	for _, verb := range []string{"push", "pull"} {
		for nth, killed := 1, true; killed; nth++ {
			if nth > 60 {
				t.Fatalf("%s: it makes more than 60 requests", verb)
			}
			if verb == "push" {
				s.editor.writeText("dir 1/file 1", fmt.Sprint("changed ", nth))
				s.editor.writeText("big", strings.Repeat(fmt.Sprint(nth), 300<<10))
			}
			other := newPlace(t)
			dir := map[string]string{"push": s.editor.dir, "pull": other.dir}[verb]
			killed = killDuring(t, proxy, childCommand(t, verb, 1, proxy.Endpoint, dir), nth)
			content := s.editor.content()
			s.checkVersions(t)
			switch verb {
			case "push":
				next := s.editor.push(s.remote) // waits for the lock to expire
				s.was[next.Version] = content
			case "pull":
				if st := other.pull(s.remote, filesync.PullOptions{}); st.Failed > 0 || len(st.Conflicts) > 0 {
					t.Errorf("killed in request %d: Pull: %+v", nth, st)
				}
				checkEqual(t, other, s.editor)
			}
			if t.Failed() {
				t.Fatalf("%s was killed in request %d", verb, nth)
			}
		}
	}
	s.checkVersions(t)
}

// killDuring runs a program that is killed during its nth request: while it sends, or
// receives the answer. It reports whether there was such a request.
func killDuring(t *testing.T, proxy *tests3.Proxy, cmd *exec.Cmd, nth int) bool {
	t.Helper()
	var begun atomic.Bool
	die := func() { begun.Store(true); _ = cmd.Process.Kill() }
	proxy.Set(func(r *http.Request, n int) tests3.Fault {
		switch {
		case n != nth:
			return tests3.Fault{}
		case r.Method == http.MethodGet:
			return tests3.Fault{CutAnswer: 10, Then: die}
		case n%2 == 0:
			return tests3.Fault{Lose: true, Then: die} // the request succeeds
		}
		return tests3.Fault{CutRequest: 10, Then: die}
	})
	out, err := cmd.CombinedOutput()
	if !begun.Load() && !strings.Contains(string(out), "not killed: <nil>") {
		t.Fatalf("%v: %s", err, out)
	}
	return begun.Load()
}

// pushTimes edits and pushes n times, and prints the versions.
func pushTimes(r *filesync.Remote, tree filesync.Tree, dir string, times int64) error {
	for n := range int(times) {
		if err := writeEdition(dir, os.Getpid(), n); err != nil {
			return err
		}
		st, err := r.Push(context.Background(), tree, filesync.PushOptions{})
		if err != nil {
			return err
		}
		fmt.Println("version", st.Version, os.Getpid(), n)
	}
	return nil
}

// writeEdition fills a directory with the content of a process's nth push.
func writeEdition(dir string, pid, n int) error {
	for f := range 10 {
		if err := os.WriteFile(fmt.Sprintf("%s/file %d", dir, f), fmt.Appendf(nil, "%d %d %d", pid, n, f), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(dir+"/big", []byte(strings.Repeat(fmt.Sprintf("%d %d ", pid, n), 40<<10)), 0o644)
}

// Programs that push to one prefix at once wait for each other: each version is
// complete and of one of them, and none is lost.
func TestProgramsAtOnce(t *testing.T) {
	const programs, times = 3, 5
	store := tests3.Versity(t)
	var all sync.WaitGroup
	outs := make([][]byte, programs)
	for i := range programs {
		cmd := childCommand(t, "pushes", times, store, t.TempDir())
		cmd.Stderr = os.Stderr
		all.Go(func() { outs[i], _ = cmd.Output() })
	}
	all.Wait()
	r := newRemote(t, openStore(t, store), filesync.Options{})
	versions := map[int64]bool{}
	for _, out := range outs {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		if len(lines) != times {
			t.Errorf("a program printed %q, want %d versions", out, times)
		}
		for _, line := range lines {
			var version int64
			var pid, n int
			if _, err := fmt.Sscanf(line, "version %d %d %d", &version, &pid, &n); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if versions[version] {
				t.Errorf("version %d is there twice", version)
			}
			versions[version] = true
			want, got := newPlace(t), newPlace(t)
			if err := writeEdition(want.dir, pid, n); err != nil {
				t.Fatal(err)
			}
			got.pull(r, filesync.PullOptions{Version: version})
			checkEqual(t, want, got)
		}
	}
}

// Pushes and pulls survive network faults, or fail and leave the version before.
func TestBadNetwork(t *testing.T) {
	endpoint := tests3.Versity(t)
	s := newScene(t, endpoint)
	proxy := tests3.NewProxy(t, endpoint)
	through := newRemote(t, openStore(t, proxy.Endpoint), filesync.Options{}.WithExpire(expire))
	faults := []tests3.Fault{
		{Status: http.StatusServiceUnavailable}, {Status: http.StatusInternalServerError, Code: "InternalError"},
		{Lose: true}, {CutRequest: 1}, {CutRequest: 5000}, {CutAnswer: 1}, {CutAnswer: 100}, {Delay: 30 * time.Millisecond},
		{Slow: 10 * time.Millisecond},
	}
	rnd := rand.New(rand.NewPCG(7, 7))
	plan := func(share float64, end int) { // from the request end on there is no network
		proxy.Set(func(_ *http.Request, n int) tests3.Fault {
			switch {
			case n > end:
				return tests3.Fault{CutRequest: 1}
			case rnd.Float64() >= share:
				return tests3.Fault{}
			}
			return faults[rnd.IntN(len(faults))]
		})
	}
	other := newPlace(t)
	failures := 0
	for i := range 12 {
		plan([]float64{0.3, 0.7, 0.1}[i%3], []int{1000, 1000, i}[i%3])
		for range 5 {
			s.editor.writeText(fmt.Sprint("file ", rnd.IntN(20)), fmt.Sprint(rnd.Uint64()))
		}
		s.editor.writeText("big", strings.Repeat(fmt.Sprint(i), 300<<10))
		before, content := newestVersion(t, s.remote), s.editor.content()
		st, err := through.Push(t.Context(), s.editor.Tree, filesync.PushOptions{})
		switch now := newestVersion(t, s.remote); {
		case err == nil:
			s.was[st.Version] = content
		case now != before: // the answer to the last request was lost
			s.was[now] = content
			failures++
		default:
			failures++
		}
		if _, err := through.Pull(t.Context(), other.Tree, filesync.PullOptions{}); err != nil {
			failures++
		}
		s.checkVersions(t)
	}
	t.Logf("%d failures", failures)
	if failures < 4 || failures > 20 {
		t.Errorf("%d of 24 failed: the network is too good, or too bad", failures)
	}
	proxy.Set(nil)
	s.editor.push(through)
	other.pull(through, filesync.PullOptions{})
	checkEqual(t, other, s.editor)
	if _, err := s.remote.Prune(t.Context(), filesync.Keep{Last: 1}); err != nil {
		t.Error(err)
	}
	s.checkVersions(t)
	if n := len(objectKeys(t, endpoint)); n > 30 {
		t.Errorf("%d objects are left", n)
	}
}

// A network that is down for a while only delays a push.
func TestNetworkCut(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	endpoint := tests3.Versity(t)
	s := newScene(t, endpoint)
	proxy := tests3.NewProxy(t, endpoint)
	b, err := s3.Open(t.Context(), s3.Options{ // with the default retries
		Bucket: tests3.Bucket, Endpoint: proxy.Endpoint, PathStyle: true,
		Credentials: func(context.Context) (s3.Credentials, error) {
			return s3.Credentials{AccessKey: tests3.AccessKey, SecretKey: tests3.SecretKey}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	const gone = 5 * time.Second
	var from time.Time
	proxy.Set(func(r *http.Request, _ int) tests3.Fault {
		if from.IsZero() && strings.Contains(r.URL.Path, "/objects/") {
			from = time.Now()
		}
		if !from.IsZero() && time.Since(from) < gone {
			return tests3.Fault{CutRequest: 1000}
		}
		return tests3.Fault{}
	})
	for n := range 20 {
		s.editor.writeText(fmt.Sprintf("large %d", n), strings.Repeat(fmt.Sprint(n), 300<<10))
	}
	begin := time.Now()
	st := s.editor.push(newRemote(t, b, filesync.Options{}))
	if took := time.Since(begin); took < gone {
		t.Errorf("it took %v, and the network was gone for %v", took, gone)
	}
	s.was[st.Version] = s.editor.content()
	s.checkVersions(t)
}

// Versions increase and are intact, even if clocks of pushing programs jump during a
// push.
func TestClocksOnS3(t *testing.T) {
	s := newScene(t, tests3.Versity(t))
	var all sync.WaitGroup
	var mu sync.Mutex
	for i := range 3 {
		p := newPlace(t)
		rnd := rand.New(rand.NewPCG(uint64(i), 3))
		var clock sync.Mutex
		r := newRemote(t, openStore(t, s.store), filesync.Options{}.WithExpire(2*time.Second).WithNow(func() time.Time {
			clock.Lock()
			defer clock.Unlock()
			return time.Now().Add(time.Duration(rnd.Int64N(int64(96*time.Hour))) - 48*time.Hour)
		}))
		all.Go(func() {
			for n := range 6 {
				if err := writeEdition(p.dir, i, n); err != nil {
					t.Error(err)
				}
				st, err := r.Push(t.Context(), p.Tree, filesync.PushOptions{})
				if err != nil { // another program took its lock for one abandoned two days ago
					if atoll.KindOf(err) != atoll.ErrConflict {
						t.Errorf("Push: %v", err)
					}
					continue
				}
				mu.Lock()
				if _, twice := s.was[st.Version]; twice {
					t.Errorf("version %d is there twice", st.Version)
				}
				s.was[st.Version] = p.content()
				mu.Unlock()
			}
		})
	}
	all.Wait()
	s.checkVersions(t)
	if len(s.was) < 5 {
		t.Errorf("of 18 pushes %d were done", len(s.was)-2)
	}
}

// A large file is uploaded in parts, and comes back unchanged, with an MD5 of its own.
func TestLargeFile(t *testing.T) {
	const size = 64 << 20
	endpoint := tests3.Versity(t)
	proxy := tests3.NewProxy(t, endpoint)
	var parts atomic.Int64
	proxy.Set(func(r *http.Request, _ int) tests3.Fault {
		if r.URL.Query().Has("partNumber") && strings.Contains(r.URL.Path, "/objects/") {
			parts.Add(1)
		}
		return tests3.Fault{}
	})
	r := newRemote(t, openStore(t, proxy.Endpoint), filesync.Options{})
	a, b := newPlace(t), newPlace(t)
	bytes := make([]byte, size)
	rand.NewChaCha8([32]byte{7}).Read(bytes)
	if err := os.WriteFile(a.filePath("large"), bytes, 0o644); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%x", md5.Sum(bytes))
	if st := a.push(r); st.BytesTransferred != size || st.FilesUploaded != 1 {
		t.Errorf("Push: %+v", st)
	}
	if n := parts.Load(); n != 4 {
		t.Errorf("it went up in %d parts of 16 MiB", n)
	}
	if st := b.pull(r, filesync.PullOptions{}); st.BytesTransferred != size || st.Failed > 0 {
		t.Errorf("Pull: %+v", st)
	}
	file, err := os.Open(b.filePath("large"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	sum := md5.New()
	if _, err := io.Copy(sum, file); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%x", sum.Sum(nil)); got != want {
		t.Errorf("it came back with the MD5 %s, want %s", got, want)
	}
	for _, p := range []*testDir{a, b} {
		state, err := os.Open(p.filePath(filesync.StateName))
		if err != nil {
			t.Fatal(err)
		}
		s, _, err := filesync.Parse(state)
		state.Close()
		if err != nil || len(s.Files) != 1 || s.Files[0].Checksum.String() != want {
			t.Errorf("its state says %+v, %v", s, err)
		}
	}
}
