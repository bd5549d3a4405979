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

// Options configure a Store. The zero value is good for bundles that are pulled, and
// for those that are there.
type Options struct {
	// Log receives what is done at debug level. nil discards.
	Log *slog.Logger
	// Guest returns the program that becomes /init of what is built, a static one for
	// Linux. nil means that nothing can be built.
	Guest func() ([]byte, error)
	// Tree returns the root file system of an OCI image, fetching what is missing. nil
	// means that nothing can be built from images.
	Tree func(ctx context.Context, ref string, progress func(atoll.Progress)) (*Tree, error)
	// Transport carries the requests of Pull. nil means one that honours the proxy
	// variables of the environment.
	Transport http.RoundTripper
}

// A Tree is an OCI image that is unpacked.
type Tree struct {
	Dir    string
	Digest string // of the image; "" for a directory that may change
	Config Config
	// Owners says that files have the owners that they have in the image. Else all
	// become root's.
	Owners bool
	// Close lets go of it: until then it does not change.
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
	partsDir    = "parts"    // HEX/: what one step of a build made; bundles have links to its files
	namesDir    = "names"    // HEX.json: which bundle a name means
	partialsDir = "partials" // sha256-HEX: what was pulled of a file
	tempsDir    = "tmp"      // X/ and X.lock, which who uses it has locked
	locksDir    = "locks"    // files to lock while something is being made
)

// Open opens the store in dir, which is made when missing, and removes what processes
// that died left half-done in it. Kinds: ErrDenied, ErrExhausted.
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
		return nil, s.failed("open", dir, err)
	}
	for _, sub := range []string{bundlesDir, partsDir, namesDir, partialsDir, tempsDir, locksDir} {
		if err := os.MkdirAll(s.path(sub), 0o700); err != nil {
			return nil, s.failed("open", s.dir, err)
		}
	}
	s.sweep()
	return s, nil
}

// Close releases the connections of pulls. What is under way goes on.
func (s *Store) Close() error {
	s.client.CloseIdleConnections()
	return nil
}

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// file names what belongs to a digest.
func file(digest string) string { return strings.Replace(digest, ":", "-", 1) }

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// nameForm is what bundles can be called: as images are, too.
var nameForm = form(`^[a-zA-Z0-9/][a-zA-Z0-9._/:@+-]{0,254}$`)

func checkName(name string) error {
	if !nameForm().MatchString(name) || strings.HasPrefix(name, "sha256:") {
		return atoll.Errorf("bundle", name, atoll.ErrInvalid, "%q is no name for a bundle: use letters, digits and . _ - / : @", name)
	}
	return nil
}

// A name is the record of what one stands for.
type name struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
}

func (s *Store) namePath(n string) string {
	return s.path(namesDir, digestOf([]byte(n))[len("sha256:"):][:32]+".json")
}

func (s *Store) setName(n, digest string) error {
	unlock, err := s.lock(context.Background(), namesDir) // nobody has it for long
	if err != nil {
		return err
	}
	defer unlock()
	return fsutil.WriteJSON(s.namePath(n), name{n, digest})
}

// names returns what all names stand for.
func (s *Store) names() (map[string]string, error) {
	entries, err := os.ReadDir(s.path(namesDir))
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, e := range entries {
		var n name
		b, err := os.ReadFile(s.path(namesDir, e.Name()))
		if err == nil && json.Unmarshal(b, &n) == nil && s.namePath(n.Name) == s.path(namesDir, e.Name()) {
			all[n.Name] = n.Digest
		}
	}
	return all, nil
}

// Get returns the bundle of that name, or digest. It reads the manifest, and that
// the files are there; not their content. Kinds: ErrInvalid (the name), ErrNotExist.
func (s *Store) Get(ref string) (*Bundle, error) {
	digest := ref
	if !digestForm().MatchString(ref) {
		if err := checkName(ref); err != nil {
			return nil, err
		}
		all, err := s.names()
		if err != nil {
			return nil, s.failed("bundle", ref, err)
		}
		if digest = all[ref]; digest == "" {
			return nil, atoll.Errorf("bundle", ref, atoll.ErrNotExist, "there is no such bundle in %s: atoll image build or atoll image pull makes one", s.dir)
		}
	}
	b, err := s.read(digest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, atoll.Errorf("bundle", ref, atoll.ErrNotExist, "there is no such bundle in %s, or not all of it: %w", s.dir, err)
	}
	if err != nil {
		return nil, s.failed("bundle", ref, err)
	}
	now := time.Now()
	os.Chtimes(filepath.Join(b.Dir, lockName), now, now) // a hint: one that cannot be written is no failure
	return b, nil
}

// read reads the bundle with this digest.
func (s *Store) read(digest string) (*Bundle, error) {
	dir := s.path(bundlesDir, file(digest))
	raw, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil {
		return nil, err
	}
	if digestOf(raw) != digest {
		return nil, damaged(nil, "the manifest in %s was changed: remove the bundle, and build or pull it again", dir)
	}
	m, err := parseManifest(raw)
	if err != nil {
		return nil, err
	}
	for _, f := range m.files() {
		fi, err := os.Stat(filepath.Join(dir, f.Name))
		if err != nil {
			return nil, err
		}
		if fi.Size() != int64(f.Size) {
			return nil, damaged(nil, "%s has %d bytes and should have %d: remove the bundle, and build or pull it again", f.Name, fi.Size(), int64(f.Size))
		}
	}
	all, err := s.names()
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

// List returns the bundles that are whole, by name; those without one are last.
func (s *Store) List() ([]*Bundle, error) {
	entries, err := os.ReadDir(s.path(bundlesDir))
	if err != nil {
		return nil, s.failed("bundles", s.dir, err)
	}
	var list []*Bundle
	for _, e := range entries {
		b, err := s.read(strings.Replace(e.Name(), "-", ":", 1))
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

// Remove takes the name from its bundle, and removes the bundle when it has no other;
// a digest removes the bundle with all its names. keep, which may be nil, says why the
// one with that digest must stay. Machines that run have its files open, and keep them.
// Kinds: ErrInvalid, ErrNotExist, and those of keep.
func (s *Store) Remove(ref string, keep func(digest string) error) error {
	digest := ref
	all, err := s.names()
	if err != nil {
		return s.failed("remove bundle", ref, err)
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
		return s.failed("remove bundle", ref, os.Remove(s.namePath(ref)))
	}
	if keep != nil {
		if err := keep(digest); err != nil {
			return err
		}
	}
	if err := s.discard(s.path(bundlesDir, file(digest))); err != nil {
		if errors.Is(err, fs.ErrNotExist) && digest == ref {
			return atoll.Errorf("remove bundle", ref, atoll.ErrNotExist, "there is no such bundle in %s", s.dir)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return s.failed("remove bundle", ref, err)
		}
	}
	for _, n := range names {
		if err := os.Remove(s.namePath(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return s.failed("remove bundle", ref, err)
		}
	}
	return s.failed("remove bundle", ref, s.dropParts())
}

// discard removes a directory of the store, which is gone at once, and as a whole.
func (s *Store) discard(dir string) error {
	t, err := s.temp()
	if err != nil {
		return err
	}
	defer t.close()
	return fsutil.Rename(dir, filepath.Join(t.dir, "gone"))
}

// dropParts removes the parts of which no bundle has a file. Their files take no
// space as long as a bundle has them.
func (s *Store) dropParts() error {
	list, err := s.List()
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, b := range list {
		for _, f := range b.files() {
			wanted[f.Digest] = true
		}
	}
	entries, err := os.ReadDir(s.path(partsDir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		lock, err := fsutil.TryLock(s.path(locksDir, e.Name()))
		if err != nil {
			continue // it is being used for a new one
		}
		p, err := s.readPart(e.Name())
		if err != nil || !slices.ContainsFunc(p.files(), func(f File) bool { return wanted[f.Digest] }) {
			err = s.discard(s.path(partsDir, e.Name()))
		}
		_ = lock.Remove()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// lock waits until it alone has the named lock of the store. The function that it
// returns gives it back.
func (s *Store) lock(ctx context.Context, name string) (unlock func(), err error) {
	l, err := fsutil.AwaitLock(ctx, s.path(locksDir, name))
	if err != nil {
		return nil, err
	}
	return func() { _ = l.Remove() }, nil // one that stays does no harm
}

// sleep waits for d, or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// A temp is a directory for what is being made. It is removed when it is closed, or
// when a store is opened after its owner has died.
type temp struct {
	dir  string
	lock *fsutil.Lock
}

const lockSuffix = ".lock"

func (s *Store) temp() (*temp, error) {
	dir := s.path(tempsDir, fmt.Sprintf("%d-%08x", os.Getpid(), rand.Uint32()))
	lock, err := fsutil.TryLock(dir + lockSuffix)
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		_ = lock.Remove()
		return nil, err
	}
	return &temp{dir, lock}, nil
}

func (t *temp) close() error {
	err := fsutil.RemoveAll(t.dir)
	if err == nil {
		err = t.lock.Remove()
	} else {
		t.lock.Release() // a sweep tries again
	}
	return err
}

// partialAge is how long what was pulled of a file waits for the rest.
const partialAge = 7 * 24 * time.Hour

// sweep removes what processes that have ended left half-done.
func (s *Store) sweep() {
	entries, _ := os.ReadDir(s.path(tempsDir))
	for _, e := range entries {
		dir, ok := strings.CutSuffix(s.path(tempsDir, e.Name()), lockSuffix)
		if !ok {
			continue
		}
		lock, err := fsutil.TryLockExisting(dir + lockSuffix)
		if err != nil {
			continue // its owner lives
		}
		if err := (&temp{dir, lock}).close(); err != nil {
			s.log.Warn("sweep", "dir", dir, "err", err)
		}
	}
	entries, _ = os.ReadDir(s.path(partialsDir))
	for _, e := range entries {
		lock, err := fsutil.TryLock(s.path(locksDir, e.Name()))
		if err != nil {
			continue
		}
		if fi, err := e.Info(); err == nil && time.Since(fi.ModTime()) > partialAge {
			os.Remove(s.path(partialsDir, e.Name()))
		}
		_ = lock.Remove()
	}
}

// seal completes the bundle that is in dir, which has the files of m, and moves it to
// its place; one that is there stays. name may be "".
func (s *Store) seal(dir string, m *Manifest, name string) (*Bundle, error) {
	raw, err := m.encode()
	if err != nil {
		return nil, err
	}
	if _, err := parseManifest(raw); err != nil {
		return nil, fmt.Errorf("of what was just made: %w", err)
	}
	return s.place(dir, raw, name)
}

// place is seal for a manifest that is written already.
func (s *Store) place(dir string, raw []byte, name string) (*Bundle, error) {
	digest := digestOf(raw)
	for file, content := range map[string][]byte{manifestName: raw, lockName: nil} {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			return nil, err
		}
	}
	if err := fsutil.Sync(dir); err != nil {
		return nil, err
	}
	unlock, err := s.lock(context.Background(), file(digest)) // nobody has it for longer than a rename
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, err := s.read(digest); err != nil { // there is none, or it is damaged
		place := s.path(bundlesDir, file(digest))
		if err := s.discard(place); err != nil && !errors.Is(err, fs.ErrNotExist) {
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
	b, err := s.read(digest)
	if err != nil {
		return nil, fmt.Errorf("just made: %w", err)
	}
	return b, nil
}

// Export copies the bundle to dir, which must be empty or missing. Pull takes it from
// there, and from any server that has the directory. Kinds: ErrAlreadyExists,
// ErrExhausted, ErrDenied.
func (s *Store) Export(ctx context.Context, b *Bundle, dir string) (err error) {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return atoll.Errorf("export", dir, atoll.ErrAlreadyExists, "the directory is not empty")
	}
	made, err := os.MkdirTemp(filepath.Dir(filepath.Clean(dir)), ".atoll-bundle-")
	if err != nil {
		return s.failed("export", dir, err)
	}
	defer func() {
		if err != nil {
			_ = fsutil.RemoveAll(made)
		}
	}()
	names := []string{manifestName}
	for _, f := range b.files() {
		names = append(names, f.Name)
	}
	for _, n := range names {
		if _, err := copyFile(ctx, filepath.Join(made, n), filepath.Join(b.Dir, n)); err != nil {
			if fsutil.IsFull(err) {
				return atoll.Errorf("export", dir, atoll.ErrExhausted, "no space left there: %w", err)
			}
			return s.failed("export", dir, err)
		}
	}
	if err := os.Chmod(made, 0o755); err != nil {
		return s.failed("export", dir, err)
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s.failed("export", dir, err)
	}
	return s.failed("export", dir, fsutil.Rename(made, dir))
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
	_, err = io.Copy(io.MultiWriter(out, sum), reader{ctx, in})
	if err1 := out.Close(); err == nil {
		err = err1
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), err
}

// A reader ends with its context.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// measure returns the File that lies at dir/name.
func measure(dir, name string) (File, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	return File{Name: name, Size: atoll.Bytes(n), Digest: "sha256:" + hex.EncodeToString(sum.Sum(nil))}, err
}
