//go:build linux

package image

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// Options configure a Store. The zero value is good.
type Options struct {
	// Log receives what is done at debug level, and damage that was repaired
	// as warnings. nil discards.
	Log *slog.Logger
	// Pull says when a registry is asked. Empty means PullMissing.
	Pull Policy
	// Platform is "os/arch[/variant]"; empty means Linux on this machine's
	// architecture.
	Platform string
	// Keychain finds credentials for registries. nil means those of the
	// docker command line: its configuration file and credential helpers.
	Keychain authn.Keychain
	// Insecure lists registries ("host" or "host:port") that may be spoken to
	// without TLS. Those on the loopback interface always may.
	Insecure []string
	// Transport carries requests to registries. nil means one of the Store's
	// own that honours the proxy variables of the environment, and that does not
	// let a registry send us to a name which leads to this machine, its link or
	// a metadata service; one that is given has to see to that.
	Transport http.RoundTripper
	// Timeout bounds one pull, retries and unpacking included. 0 means 5
	// minutes, a negative one no limit. What was fetched completely before it
	// ran out is not fetched again.
	Timeout time.Duration
	// Limit bounds what one image may unpack to, holes in files included, and
	// what is fetched for it. 0 means 32 GiB, atoll.Unlimited lifts it.
	Limit atoll.Bytes
}

// A Policy says when a registry is asked for an image that is named by a tag.
// One named by a digest is fetched at most once.
type Policy string

// The policies.
const (
	PullMissing Policy = "missing" // when the store does not have it
	PullAlways  Policy = "always"  // every time; layers that the store has are not fetched again
	PullNever   Policy = "never"
)

// Defaults of Options.
const (
	DefaultTimeout             = 5 * time.Minute
	DefaultLimit   atoll.Bytes = 32 << 30
)

// A Store is a cache of images in a directory. Any number of Stores, in this
// process and in others, may be open on one directory. All methods may be
// called at once from many goroutines.
type Store struct {
	dir       string
	opts      Options
	log       *slog.Logger
	platform  v1.Platform
	transport http.RoundTripper // to whom the user has named
	outward   http.RoundTripper // to others
	idle      func()            // closes connections that are not in use
	owners    bool              // owners of files can be kept
	backoff   time.Duration     // before the first retry

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // jobs

	mu     sync.Mutex
	jobs   map[string]*job // by what they fetch; those still wanted
	temp   *tempDir        // made on first use
	closed bool
}

// Open opens the store in dir, which is made when missing, and removes what
// processes that died left half-done in it. Kinds: ErrInvalid (opts),
// ErrDenied, ErrExhausted.
func Open(dir string, opts Options) (*Store, error) {
	s := &Store{opts: opts, log: opts.Log, backoff: 250 * time.Millisecond, jobs: map[string]*job{}, idle: func() {}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.opts.Pull = cmp.Or(opts.Pull, PullMissing)
	if p := s.opts.Pull; p != PullMissing && p != PullAlways && p != PullNever {
		return nil, atoll.Errorf("open", "image store", atoll.ErrInvalid, "pull policy %q: use missing, always or never", p)
	}
	s.opts.Timeout = cmp.Or(opts.Timeout, DefaultTimeout)
	s.opts.Limit = cmp.Or(opts.Limit, DefaultLimit)
	platform, err := v1.ParsePlatform(cmp.Or(opts.Platform, "linux/"+runtime.GOARCH))
	if err != nil || platform.OS == "" || platform.Architecture == "" {
		return nil, atoll.Errorf("open", "image store", atoll.ErrInvalid, "platform %q: write it like linux/amd64", opts.Platform)
	}
	s.platform = *platform
	if s.opts.Keychain == nil {
		s.opts.Keychain = authn.DefaultKeychain
	}
	if s.dir, err = filepath.Abs(dir); err != nil {
		return nil, s.storage(err)
	}
	for _, sub := range []string{blobsDir, rootsDir, refsDir, tempsDir, locksDir} {
		if err := os.MkdirAll(s.path(sub), 0o700); err != nil {
			return nil, s.storage(err)
		}
		if err := os.Chmod(s.path(sub), 0o700); err != nil {
			return nil, s.storage(err)
		}
	}
	s.owners = canChown()
	s.transport, s.outward = opts.Transport, opts.Transport
	if opts.Transport == nil {
		own, direct := newTransport(), newOutward()
		s.transport = own
		s.outward = outward{proxy: own.Proxy, proxied: own, direct: direct}
		s.idle = func() { own.CloseIdleConnections(); direct.CloseIdleConnections() }
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.sweep()
	return s, nil
}

// Owners reports whether the files of what is unpacked have the owners that the image
// gives them, for which it takes root. Else all belong to the user of the store.
func (s *Store) Owners() bool { return s.owners }

// Close stops what Get is still fetching, waits for it, and releases what this
// value holds. The images stay. A second Close does nothing.
func (s *Store) Close() error {
	s.mu.Lock()
	done := s.closed
	s.closed = true
	s.mu.Unlock()
	if done {
		return nil
	}
	s.cancel()
	s.wg.Wait()
	s.idle()
	s.mu.Lock()
	temp := s.temp
	s.temp = nil
	s.mu.Unlock()
	if temp == nil {
		return nil
	}
	if err := temp.close(); err != nil {
		return s.storage(err)
	}
	return nil
}

// The directories of a store.
const (
	blobsDir = "blobs" // ALGORITHM-HEX: manifests' configs and layers, as fetched
	rootsDir = "roots" // ALGORITHM-HEX/: image.json, lock, root/
	refsDir  = "refs"  // by hash of the reference and platform: which digest it means
	tempsDir = "tmp"   // one directory for each Store that is at work, locked by it
	locksDir = "locks" // files to lock while something is being fetched
)

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// file names what belongs to a digest.
func file(h v1.Hash) string { return h.Algorithm + "-" + h.Hex }

// tempName returns the name of a new file or directory, not made yet, that is
// removed at the latest when a Store is opened after this process has ended.
func (s *Store) tempName() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed && s.temp == nil {
		return "", atoll.Errorf("image store", s.dir, atoll.ErrUnavailable, "it is closed")
	}
	if s.temp == nil {
		t, err := newTempDir(s.path(tempsDir))
		if err != nil {
			return "", err
		}
		s.temp = t
	}
	s.temp.n++
	return filepath.Join(s.temp.path, fmt.Sprint(s.temp.n)), nil
}

// sweep removes the temporary directories of Stores that are gone, and the
// files that they had locked.
func (s *Store) sweep() {
	for _, sub := range []string{tempsDir, locksDir} {
		entries, _ := os.ReadDir(s.path(sub))
		for _, e := range entries {
			path := s.path(sub, e.Name())
			l, err := tryLock(path, lockExclusive)
			if err != nil {
				continue // its Store is alive, or it has just gone
			}
			s.log.Debug("sweep", "path", path)
			if err := fsutil.RemoveAll(path); err != nil {
				s.log.Warn("sweep", "path", path, "err", err)
			}
			l.Close()
		}
	}
}
