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
	// Log receives the store's actions at debug level, and repaired damage as
	// warnings. nil discards.
	Log *slog.Logger
	// Pull says when Get asks a registry. Empty means atoll.PullMissing.
	Pull atoll.PullPolicy
	// Platform is "os/arch[/variant]"; empty means Linux on this machine's
	// architecture.
	Platform string
	// Keychain finds credentials for registries. nil means those of the
	// docker command line: its configuration file and credential helpers.
	Keychain authn.Keychain
	// Insecure lists registries ("host" or "host:port") that may be contacted
	// without TLS. Registries on the loopback interface always may.
	Insecure []string
	// Transport carries requests to registries. nil means a transport of the
	// Store that honours the proxy variables of the environment, and that does not
	// let a registry redirect to a name which resolves to this machine, its link or
	// a metadata service; a transport given here has to ensure that itself.
	Transport http.RoundTripper
	// Timeout bounds one pull, retries and unpacking included. 0 means 5
	// minutes, a negative one no limit. After a timeout, the next pull does not
	// fetch again the blobs that are complete.
	Timeout time.Duration
	// Limit bounds the unpacked size of one image, holes in files included, and
	// the bytes fetched for it. 0 means 32 GiB, atoll.Unlimited lifts it.
	Limit atoll.Bytes
}

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
	transport http.RoundTripper // to hosts that the user has named
	outward   http.RoundTripper // to other hosts
	idle      func()            // closes connections that are not in use
	owners    bool              // this process can set the owners of files
	backoff   time.Duration     // before the first retry

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // jobs

	mu     sync.Mutex
	jobs   map[string]*job // by the text of their reference; only those with waiters
	temp   *tempDir        // made on first use
	closed bool
}

// Open opens the store in dir, which it creates if missing, and removes unfinished
// work of processes that died. Kinds: ErrInvalid (opts), ErrDenied, ErrExhausted.
func Open(dir string, opts Options) (*Store, error) {
	s := &Store{opts: opts, log: opts.Log, backoff: 250 * time.Millisecond, jobs: map[string]*job{}, idle: func() {}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.opts.Pull = cmp.Or(opts.Pull, atoll.PullMissing)
	if !s.opts.Pull.Valid() {
		return nil, atoll.Errorf("open", "image store", atoll.ErrInvalid, "pull policy %q: use missing, always or never", s.opts.Pull)
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
		return nil, s.storeError(err)
	}
	for _, sub := range []string{blobsDir, rootsDir, refsDir, tempsDir, locksDir} {
		if err := os.MkdirAll(s.storePath(sub), 0o700); err != nil {
			return nil, s.storeError(err)
		}
		if err := os.Chmod(s.storePath(sub), 0o700); err != nil {
			return nil, s.storeError(err)
		}
	}
	s.owners = canChown()
	s.transport, s.outward = opts.Transport, opts.Transport
	if opts.Transport == nil {
		own, direct := newTransport(), newExternalTransport()
		s.transport = own
		s.outward = externalTransport{proxy: own.Proxy, proxied: own, direct: direct}
		s.idle = func() { own.CloseIdleConnections(); direct.CloseIdleConnections() }
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.sweepStale()
	return s, nil
}

// Owners reports whether unpacked files have the owners that the image gives them,
// which requires root. Else all belong to the user of the store.
func (s *Store) Owners() bool { return s.owners }

// Close stops the pulls of this Store, waits for their end, and releases its
// resources. The images stay. A second Close does nothing.
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
		return s.storeError(err)
	}
	return nil
}

// The directories of a store.
const (
	blobsDir = "blobs" // ALGORITHM-HEX: configurations and layers, as fetched
	rootsDir = "roots" // ALGORITHM-HEX/: image.json, lock, root/
	refsDir  = "refs"  // by hash of the reference and platform: the digest of a tag
	tempsDir = "tmp"   // one directory for each active Store, locked by it
	locksDir = "locks" // files to lock during a fetch
)

func (s *Store) storePath(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// digestName returns the name of the file or directory of a digest.
func digestName(h v1.Hash) string { return h.Algorithm + "-" + h.Hex }

// tempName returns an unused name for a file or directory. At the latest, the first
// Open after the end of this process removes it.
func (s *Store) tempName() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed && s.temp == nil {
		return "", atoll.Errorf("image store", s.dir, atoll.ErrUnavailable, "the image store is closed")
	}
	if s.temp == nil {
		t, err := newTempDir(s.storePath(tempsDir))
		if err != nil {
			return "", err
		}
		s.temp = t
	}
	s.temp.n++
	return filepath.Join(s.temp.path, fmt.Sprint(s.temp.n)), nil
}

// sweepStale removes the temporary directories and lock files of Stores whose process
// has ended.
func (s *Store) sweepStale() {
	for _, sub := range []string{tempsDir, locksDir} {
		entries, _ := os.ReadDir(s.storePath(sub))
		for _, e := range entries {
			path := s.storePath(sub, e.Name())
			l, err := tryLock(path, lockExclusive)
			if err != nil {
				continue // its Store is alive, or another sweep has removed it
			}
			s.log.Debug("sweep", "path", path)
			if err := fsutil.RemoveAll(path); err != nil {
				s.log.Warn("sweep", "path", path, "err", err)
			}
			l.Close()
		}
	}
}
