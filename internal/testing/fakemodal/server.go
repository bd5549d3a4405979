// Package fakemodal is Modal for tests: a server of the protocol that Modal's SDKs
// speak, made from their own definitions of it, whose sandboxes are real ones of
// another provider. Images are built, commands run, volumes keep files, names are
// taken and time limits hold; what the service refuses is refused with the same codes,
// as far as its SDKs and its documentation tell.
//
// It is kinder than the service with volumes: what a sandbox writes is there at once, also
// for others that have the volume mounted, and whatever ends the sandbox. In the service
// it is there when the sandbox terminates, and others see it when they mount it anew.
//
//	server, err := fakemodal.New(fakemodal.Options{Backend: provider, Dir: t.TempDir()})
//	...
//	t.Setenv("MODAL_SERVER_URL", server.URL())
//	client, err := modal.NewClientWithOptions(&modal.ClientParams{TokenID: server.TokenID(), TokenSecret: server.TokenSecret()})
package fakemodal

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// Options configure a server. Backend and Dir are required.
type Options struct {
	// Backend makes the sandboxes. It must pull images over plain HTTP from the
	// loopback interface, mount directories of this machine, and reach files and ports
	// of its sandboxes.
	Backend atoll.Provider
	// Dir keeps volumes, blobs and the layers of images. It is made when missing, and
	// stays when the server is closed.
	Dir string
	// TokenID and TokenSecret are those that are accepted. Default: random ones.
	TokenID, TokenSecret string
	// Log receives what the server has to say. Default: nowhere.
	Log *slog.Logger
}

// maxMessage is the longest message of the protocol.
const maxMessage = 100 << 20

// cleanupTime is how long what is left behind may take to be removed.
var cleanupTime = testenv.Scale(time.Minute)

// A Server is the service. All methods may be called at once from many goroutines.
type Server struct {
	pb.UnimplementedModalClientServer

	opts     Options
	log      *slog.Logger
	ctx      context.Context // of what goes on without a call
	stop     context.CancelFunc
	tasks    sync.WaitGroup // of the same
	listener *trackingListener
	grpc     *grpc.Server
	blobs    *blobStore
	registry *registry
	tls      *certificate
	faults   faults
	tokens   tokens
	asked    environmentLog
	closers  []func() error // of listen
	closed   sync.Once

	mu        sync.Mutex
	last      time.Time // of the clock
	apps      catalog[struct{}]
	secrets   catalog[map[string]string]
	volumes   catalog[*volume]
	dicts     catalog[*dict]
	images    map[string]*image   // by id
	recipes   map[string]*image   // by what they are made of: the latest of each
	sandboxes map[string]*sandbox // by id, also those that have finished
	boxes     map[string]*sandbox // by the backend's id
	execs     map[string]*execution
	handles   map[string]*handle // files that are open
	fileExecs map[string]*fileExec
}

// New starts a server on the loopback interface, which ends with Close.
func New(opts Options) (*Server, error) {
	s := &Server{
		opts: opts, log: opts.Log,
		apps: newCatalog[struct{}]("App", "ap-"), secrets: newCatalog[map[string]string]("Secret", "st-"),
		volumes: newCatalog[*volume]("Volume", "vo-"), dicts: newCatalog[*dict]("Dict", "di-"),
		images: map[string]*image{}, recipes: map[string]*image{},
		sandboxes: map[string]*sandbox{}, boxes: map[string]*sandbox{},
		execs: map[string]*execution{}, handles: map[string]*handle{}, fileExecs: map[string]*fileExec{},
	}
	s.opts.TokenID = cmp.Or(opts.TokenID, newID("ak-"))
	s.opts.TokenSecret = cmp.Or(opts.TokenSecret, newID("as-"))
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	if err := s.startListeners(); err != nil {
		s.stop()
		return nil, errors.Join(err, s.closeListeners())
	}
	s.grpc = grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage), grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(s.interceptUnary), grpc.StreamInterceptor(s.interceptStream))
	pb.RegisterModalClientServer(s.grpc, s)
	s.tasks.Go(func() { _ = s.grpc.Serve(s.listener) }) // it ends with Stop
	s.tasks.Go(s.watchBoxes)
	return s, nil
}

// startListeners makes what has to be closed.
func (s *Server) startListeners() (err error) {
	for _, dir := range []string{"volumes", "blobs", "files", "layers"} {
		if err := os.MkdirAll(s.filePath(dir), 0o700); err != nil {
			return err
		}
	}
	if s.tls, err = newCertificate(); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.listener = &trackingListener{Listener: l, conns: map[*trackedConn]bool{}}
	s.closers = append(s.closers, func() error {
		if err := s.listener.Close(); !errors.Is(err, net.ErrClosed) { // so it is when it was served
			return err
		}
		return nil
	})
	if s.blobs, err = newBlobStore(s.filePath("blobs")); err != nil {
		return err
	}
	s.closers = append(s.closers, s.blobs.close)
	if s.registry, err = newRegistry(s.filePath("layers")); err != nil {
		return err
	}
	s.closers = append(s.closers, s.registry.close)
	return nil
}

// closeListeners closes what listen has made.
func (s *Server) closeListeners() (err error) {
	for _, f := range s.closers {
		err = errors.Join(err, f())
	}
	return err
}

// Close ends every call, and every sandbox that the server has made, and returns when
// nothing of them is left. A second Close does nothing.
func (s *Server) Close() (err error) {
	s.closed.Do(func() {
		s.stop()
		s.grpc.Stop()
		s.tasks.Wait()
		err = errors.Join(s.closeListeners(), s.removeLeftovers())
	})
	return err
}

// removeLeftovers removes sandboxes that could not be removed when they ended.
func (s *Server) removeLeftovers() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTime)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.boxes {
		box, getErr := s.opts.Backend.Get(ctx, id)
		if getErr == nil {
			getErr = box.Remove(ctx, atoll.RemoveVolumes())
		}
		if getErr != nil && atoll.KindOf(getErr) != atoll.ErrNotFound {
			err = errors.Join(err, getErr)
		}
	}
	return err
}

// URL is that of the service, as the variable MODAL_SERVER_URL has it.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() }

// TokenID is what clients show, with TokenSecret.
func (s *Server) TokenID() string { return s.opts.TokenID }

// TokenSecret is what belongs to TokenID.
func (s *Server) TokenSecret() string { return s.opts.TokenSecret }

// Sandboxes returns those that are there: that wait, run, or are being ended. Their names
// are by their ids.
func (s *Server) Sandboxes() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]string{}
	for id, sb := range s.sandboxes {
		if sb.result == nil {
			all[id] = sb.name
		}
	}
	return all
}

func (s *Server) filePath(elem ...string) string {
	return filepath.Join(append([]string{s.opts.Dir}, elem...)...)
}

// nextTime is the time, later at each call: lists go on before a time. Callers hold mu.
func (s *Server) nextTime() time.Time {
	now := time.Now()
	if next := s.last.Add(time.Millisecond); now.Before(next) {
		now = next
	}
	s.last = now
	return now
}

// unixSeconds is a time as the protocol has it.
func unixSeconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMicro()) / 1e6
}

// newID is an id with 22 letters and digits, as the service's have.
func newID(prefix string) string { return prefix + rand.Text()[:22] }

// timeoutChan is a channel for a timeout of the protocol, in seconds.
func timeoutChan(secs float32) (<-chan time.Time, func()) {
	t := time.NewTimer(time.Duration(float64(max(0, secs)) * float64(time.Second)))
	return t.C, func() { t.Stop() }
}
