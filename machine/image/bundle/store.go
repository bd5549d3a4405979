package bundle

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// Options configure a Store. The zero value is good for pulls, and for bundles in the
// store.
type Options struct {
	// Log receives the store's actions at debug level. nil discards.
	Log *slog.Logger
	// Guest returns the program that becomes /init of built bundles, a static one for
	// Linux. nil means that Build fails.
	Guest func() ([]byte, error)
	// Tree returns the root file system of an OCI image, which it fetches as the policy
	// says; an empty one leaves that to Tree. nil means that Build cannot build from images.
	Tree func(ctx context.Context, ref string, policy atoll.PullPolicy, progress func(atoll.Progress)) (*Tree, error)
	// Transport carries the requests of Pull. nil means one that honours the proxy
	// variables of the environment.
	Transport http.RoundTripper
}

// A Tree is an unpacked OCI image.
type Tree struct {
	Dir    string
	Digest string // of the image; "" for a directory that may change
	Config Config
	// Owners says that files have the owners from the image. Else Build gives all
	// files to root.
	Owners bool
	// Close releases the tree, which does not change until then.
	Close func() error
}

// A Store is a directory of bundles. Any number of Stores, in this process and in
// others, may be open on one directory. All methods may be called at once.
type Store struct {
	dir    string
	opts   Options
	log    *slog.Logger
	client *http.Client
	wait   time.Duration // before the first retry of a Pull

	mu    sync.Mutex
	pulls map[string]State // by source
}

// The directories of a store.
const (
	bundlesDir  = "bundles"  // sha256-HEX/: a bundle
	partsDir    = "parts"    // HEX/: the result of one step of a build; bundles have links to its files
	namesDir    = "names"    // HEX.json: a name, and the digest of its bundle
	partialsDir = "partials" // sha256-HEX: a partly pulled file
	tempsDir    = "tmp"      // X/ and X.lock, which its user keeps locked
	locksDir    = "locks"    // files to lock during a build or a pull
)

// Open opens the store in dir, which it creates if missing, and removes unfinished work
// of processes that died. Kinds: ErrDenied, ErrExhausted.
func Open(dir string, opts Options) (*Store, error) {
	s := &Store{opts: opts, log: opts.Log, wait: 5 * time.Second, pulls: map[string]State{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.client = &http.Client{Transport: opts.Transport, CheckRedirect: checkRedirect}
	if opts.Transport == nil {
		own := http.DefaultTransport.(*http.Transport).Clone()
		own.ResponseHeaderTimeout = time.Minute
		s.client.Transport = own
	}
	var err error
	if s.dir, err = filepath.Abs(dir); err != nil {
		return nil, s.wrapError("open", dir, err)
	}
	for _, sub := range []string{bundlesDir, partsDir, namesDir, partialsDir, tempsDir, locksDir} {
		if err := os.MkdirAll(s.storePath(sub), 0o700); err != nil {
			return nil, s.wrapError("open", s.dir, err)
		}
	}
	s.sweepStale()
	return s, nil
}

// Close releases idle connections. Pulls that run go on.
func (s *Store) Close() error {
	s.client.CloseIdleConnections()
	return nil
}

func (s *Store) storePath(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// digestName returns the name of the file or directory of a digest.
func digestName(digest string) string { return strings.Replace(digest, ":", "-", 1) }

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// nameForm matches names of bundles, which include those of images.
var nameForm = lazyRegexp(`^[a-zA-Z0-9/][a-zA-Z0-9._/:@+-]{0,254}$`)

func checkName(name string) error {
	if !nameForm().MatchString(name) || strings.HasPrefix(name, "sha256:") {
		return atoll.Errorf("bundle", name, atoll.ErrInvalid, "%q is not a valid name for a bundle: use letters, digits and . _ - / : @", name)
	}
	return nil
}

// A nameRecord is the store's file about a name.
type nameRecord struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
}

func (s *Store) namePath(n string) string {
	return s.storePath(namesDir, digestOf([]byte(n))[len("sha256:"):][:32]+".json")
}

func (s *Store) setName(n, digest string) error {
	unlock, err := s.acquireLock(context.Background(), namesDir) // no process holds it for long
	if err != nil {
		return err
	}
	defer unlock()
	return fsutil.WriteJSON(s.namePath(n), nameRecord{n, digest})
}

// readNames returns the digests of all names.
func (s *Store) readNames() (map[string]string, error) {
	entries, err := os.ReadDir(s.storePath(namesDir))
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, e := range entries {
		var n nameRecord
		b, err := os.ReadFile(s.storePath(namesDir, e.Name()))
		if err == nil && json.Unmarshal(b, &n) == nil && s.namePath(n.Name) == s.storePath(namesDir, e.Name()) {
			all[n.Name] = n.Digest
		}
	}
	return all, nil
}

// Get returns the bundle with that name or digest. It checks the manifest and the sizes
// of the files, but does not read their content. Kinds: ErrInvalid (the name),
// ErrNotExist.
func (s *Store) Get(ref string) (*Bundle, error) {
	digest := ref
	if !digestForm().MatchString(ref) {
		if err := checkName(ref); err != nil {
			return nil, err
		}
		all, err := s.readNames()
		if err != nil {
			return nil, s.wrapError("bundle", ref, err)
		}
		if digest = all[ref]; digest == "" {
			return nil, atoll.Errorf("bundle", ref, atoll.ErrNotExist, "there is no such bundle in %s: run atoll image build or atoll image pull", s.dir)
		}
	}
	b, err := s.readBundle(digest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, atoll.Errorf("bundle", ref, atoll.ErrNotExist, "there is no such bundle in %s, or it is incomplete: %w", s.dir, err)
	}
	if err != nil {
		return nil, s.wrapError("bundle", ref, err)
	}
	now := time.Now()
	os.Chtimes(filepath.Join(b.Dir, lockName), now, now) // only a hint: a failure does not matter
	return b, nil
}

// readBundle returns the bundle with this digest.
func (s *Store) readBundle(digest string) (*Bundle, error) {
	dir := s.storePath(bundlesDir, digestName(digest))
	raw, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil {
		return nil, err
	}
	if digestOf(raw) != digest {
		return nil, newDamageError(nil, "the manifest in %s was changed: remove the bundle, and build or pull it again", dir)
	}
	m, err := parseManifest(raw)
	if err != nil {
		return nil, err
	}
	for _, f := range m.listFiles() {
		fi, err := os.Stat(filepath.Join(dir, f.Name))
		if err != nil {
			return nil, err
		}
		if fi.Size() != int64(f.Size) {
			return nil, newDamageError(nil, "%s has %d bytes and should have %d: remove the bundle, and build or pull it again", f.Name, fi.Size(), int64(f.Size))
		}
	}
	all, err := s.readNames()
	if err != nil {
		return nil, err
	}
	b := &Bundle{Manifest: *m, Digest: digest, Dir: dir}
	for n, d := range all {
		if d == digest {
			b.Names = append(b.Names, n)
		}
	}
	slices.Sort(b.Names)
	if fi, err := os.Stat(filepath.Join(dir, manifestName)); err == nil {
		b.Made, b.Used = fi.ModTime(), fi.ModTime()
	}
	if fi, err := os.Stat(filepath.Join(dir, lockName)); err == nil {
		b.Used = fi.ModTime()
	}
	return b, nil
}

// List returns the complete bundles, sorted by name; those without a name are last.
func (s *Store) List() ([]*Bundle, error) {
	entries, err := os.ReadDir(s.storePath(bundlesDir))
	if err != nil {
		return nil, s.wrapError("bundles", s.dir, err)
	}
	var list []*Bundle
	for _, e := range entries {
		b, err := s.readBundle(strings.Replace(e.Name(), "-", ":", 1))
		if err != nil {
			s.log.Debug("bundle", "dir", e.Name(), "err", err)
			continue
		}
		list = append(list, b)
	}
	slices.SortStableFunc(list, func(a, b *Bundle) int {
		if (len(a.Names) == 0) != (len(b.Names) == 0) {
			return len(b.Names) - len(a.Names)
		}
		return slices.Compare(a.Names, b.Names)
	})
	return list, nil
}

// Remove takes the name from its bundle, and removes the bundle if it has no other name;
// a digest removes the bundle with all its names. keep, which may be nil, returns an
// error if the bundle with that digest must stay. Running machines have its files open,
// and can still read them. Kinds: ErrInvalid, ErrNotExist, and those of keep.
func (s *Store) Remove(ref string, keep func(digest string) error) error {
	digest := ref
	all, err := s.readNames()
	if err != nil {
		return s.wrapError("remove bundle", ref, err)
	}
	if !digestForm().MatchString(ref) {
		if digest = all[ref]; digest == "" {
			return atoll.Errorf("remove bundle", ref, atoll.ErrNotExist, "there is no such bundle in %s", s.dir)
		}
	}
	var names []string
	for n, d := range all {
		if d == digest {
			names = append(names, n)
		}
	}
	if digest != ref && len(names) > 1 {
		return s.wrapError("remove bundle", ref, os.Remove(s.namePath(ref)))
	}
	if keep != nil {
		if err := keep(digest); err != nil {
			return err
		}
	}
	if err := s.discardDir(s.storePath(bundlesDir, digestName(digest))); err != nil {
		if errors.Is(err, fs.ErrNotExist) && digest == ref {
			return atoll.Errorf("remove bundle", ref, atoll.ErrNotExist, "there is no such bundle in %s", s.dir)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return s.wrapError("remove bundle", ref, err)
		}
	}
	for _, n := range names {
		if err := os.Remove(s.namePath(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return s.wrapError("remove bundle", ref, err)
		}
	}
	return s.wrapError("remove bundle", ref, s.dropParts())
}

// discardDir atomically removes a directory from the store, and then deletes it.
func (s *Store) discardDir(dir string) error {
	t, err := s.newTempDir()
	if err != nil {
		return err
	}
	defer t.close()
	return fsutil.Rename(dir, filepath.Join(t.dir, "gone"))
}

// dropParts removes the parts that share no file with a bundle. The files of the others
// take no extra space: they are links.
func (s *Store) dropParts() error {
	list, err := s.List()
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, b := range list {
		for _, f := range b.listFiles() {
			wanted[f.Digest] = true
		}
	}
	entries, err := os.ReadDir(s.storePath(partsDir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		lock, err := fsutil.TryLock(s.storePath(locksDir, e.Name()))
		if err != nil {
			continue // a build is using it
		}
		p, err := s.readPart(e.Name())
		if err != nil || !slices.ContainsFunc(p.listFiles(), func(f File) bool { return wanted[f.Digest] }) {
			err = s.discardDir(s.storePath(partsDir, e.Name()))
		}
		_ = lock.Remove()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// acquireLock waits for the named lock of the store, and locks it exclusively. unlock
// releases it.
func (s *Store) acquireLock(ctx context.Context, name string) (unlock func(), err error) {
	l, err := fsutil.AwaitLock(ctx, s.storePath(locksDir, name))
	if err != nil {
		return nil, err
	}
	return func() { _ = l.Remove() }, nil // a file that stays does no harm
}

// sleepContext waits for d or for the end of ctx.
func sleepContext(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// A tempDir is a directory for unfinished work. close removes it, and so does Open after
// its owner has died.
type tempDir struct {
	dir  string
	lock *fsutil.Lock
}

const lockSuffix = ".lock"

func (s *Store) newTempDir() (*tempDir, error) {
	dir := s.storePath(tempsDir, fmt.Sprintf("%d-%08x", os.Getpid(), rand.Uint32()))
	lock, err := fsutil.TryLock(dir + lockSuffix)
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		_ = lock.Remove()
		return nil, err
	}
	return &tempDir{dir, lock}, nil
}

func (t *tempDir) close() error {
	err := fsutil.RemoveAll(t.dir)
	if err == nil {
		err = t.lock.Remove()
	} else {
		t.lock.Release() // a sweep tries again
	}
	return err
}

// partialAge is the time after which a sweep removes a partly pulled file.
const partialAge = 7 * 24 * time.Hour

// sweepStale removes unfinished work of processes that have ended, and old partial files.
func (s *Store) sweepStale() {
	entries, _ := os.ReadDir(s.storePath(tempsDir))
	for _, e := range entries {
		dir, ok := strings.CutSuffix(s.storePath(tempsDir, e.Name()), lockSuffix)
		if !ok {
			continue
		}
		lock, err := fsutil.TryLockExisting(dir + lockSuffix)
		if err != nil {
			continue // its owner lives
		}
		if err := (&tempDir{dir, lock}).close(); err != nil {
			s.log.Warn("sweep", "dir", dir, "err", err)
		}
	}
	entries, _ = os.ReadDir(s.storePath(partialsDir))
	for _, e := range entries {
		lock, err := fsutil.TryLock(s.storePath(locksDir, e.Name()))
		if err != nil {
			continue
		}
		if fi, err := e.Info(); err == nil && time.Since(fi.ModTime()) > partialAge {
			os.Remove(s.storePath(partialsDir, e.Name()))
		}
		_ = lock.Remove()
	}
}

// sealBundle adds the manifest m to the files in dir, and moves dir to its place in the
// store. If the bundle is there already, that one stays. name may be "".
func (s *Store) sealBundle(dir string, m *Manifest, name string) (*Bundle, error) {
	raw, err := m.encodeJSON()
	if err != nil {
		return nil, err
	}
	if _, err := parseManifest(raw); err != nil {
		return nil, fmt.Errorf("built an invalid manifest: %w", err)
	}
	return s.installBundle(dir, raw, name)
}

// installBundle is sealBundle for an encoded and checked manifest.
func (s *Store) installBundle(dir string, raw []byte, name string) (*Bundle, error) {
	digest := digestOf(raw)
	for file, content := range map[string][]byte{manifestName: raw, lockName: nil} {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			return nil, err
		}
	}
	if err := fsutil.Sync(dir); err != nil {
		return nil, err
	}
	unlock, err := s.acquireLock(context.Background(), digestName(digest)) // no process holds it for longer than a rename
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, err := s.readBundle(digest); err != nil { // it does not exist, or is damaged
		place := s.storePath(bundlesDir, digestName(digest))
		if err := s.discardDir(place); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err := fsutil.Rename(dir, place); err != nil {
			return nil, err
		}
	}
	if name != "" {
		if err := s.setName(name, digest); err != nil {
			return nil, err
		}
	}
	b, err := s.readBundle(digest)
	if err != nil {
		return nil, fmt.Errorf("just installed: %w", err)
	}
	return b, nil
}

// Export copies the bundle to dir, which must be empty or missing. Pull accepts that
// directory, and its URL on any server that has it. Kinds: ErrAlreadyExists,
// ErrExhausted, ErrDenied.
func (s *Store) Export(ctx context.Context, b *Bundle, dir string) (err error) {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return atoll.Errorf("export", dir, atoll.ErrAlreadyExists, "the directory is not empty")
	}
	made, err := os.MkdirTemp(filepath.Dir(filepath.Clean(dir)), ".atoll-bundle-")
	if err != nil {
		return s.wrapError("export", dir, err)
	}
	defer func() {
		if err != nil {
			_ = fsutil.RemoveAll(made)
		}
	}()
	names := []string{manifestName}
	for _, f := range b.listFiles() {
		names = append(names, f.Name)
	}
	for _, n := range names {
		if _, err := copyFile(ctx, filepath.Join(made, n), filepath.Join(b.Dir, n)); err != nil {
			if fsutil.IsFull(err) {
				return atoll.Errorf("export", dir, atoll.ErrExhausted, "no space left there: %w", err)
			}
			return s.wrapError("export", dir, err)
		}
	}
	if err := os.Chmod(made, 0o755); err != nil {
		return s.wrapError("export", dir, err)
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s.wrapError("export", dir, err)
	}
	return s.wrapError("export", dir, fsutil.Rename(made, dir))
}

// copyFile copies a file into a new one, and returns its digest.
func copyFile(ctx context.Context, to, from string) (digest string, err error) {
	in, err := os.Open(from)
	if err != nil {
		return "", err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(out, sum), contextReader{ctx, in})
	if err1 := out.Close(); err == nil {
		err = err1
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), err
}

// A contextReader fails when its context has ended.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// describeFile returns the File at dir/name, with its size and digest.
func describeFile(dir, name string) (File, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	return File{Name: name, Size: atoll.Bytes(n), Digest: "sha256:" + hex.EncodeToString(sum.Sum(nil))}, err
}
