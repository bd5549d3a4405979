// Package fakemodal is a fake of Modal for tests: a server of the protocol that Modal's SDKs use,
// generated from their own definitions. Its sandboxes are real sandboxes of another provider. It
// builds images, runs commands, stores files in volumes, and enforces unique names and time limits. It
// rejects what the service rejects, with the same codes, as far as the SDKs and the documentation show
// them.
//
// Volumes differ from the service's: other sandboxes see at once what a sandbox writes, and it
// survives however the sandbox ends. With the service, writes arrive in the volume when the sandbox
// terminates, and others see them after they mount the volume again.
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
	// Backend creates the sandboxes. It must pull images over plain HTTP from the loopback
	// interface, mount directories of this machine, and give access to files and ports of its
	// sandboxes.
	Backend atoll.Provider
	// Dir holds volumes, blobs and the layers of images. New creates it if missing; Close
	// does not remove it.
	Dir string
	// TokenID and TokenSecret are the accepted tokens. Default: random ones.
	TokenID, TokenSecret string
	// Log receives errors that no call can return. Default: discarded.
	Log *slog.Logger
}

// maxMessage is the longest message of the protocol.
const maxMessage = 100 << 20

// cleanupTime limits the removal of what a call or the server leaves behind.
var cleanupTime = testenv.Scale(time.Minute)

// A Server is a fake of the service. Its methods may be called concurrently.
type Server struct {
	pb.UnimplementedModalClientServer

	opts         Options
	log          *slog.Logger
	ctx          context.Context // for work outside a call; ends with Close
	stop         context.CancelFunc
	tasks        sync.WaitGroup // work outside a call
	listener     *trackingListener
	grpc         *grpc.Server
	blobs        *blobStore
	registry     *registry
	tls          *certificate
	faults       faults
	tokens       tokens
	environments environmentLog
	closers      []func() error // added by startListeners
	closed       sync.Once

	mu        sync.Mutex
	last      time.Time // the latest result of nextTime
	apps      catalog[struct{}]
	secrets   catalog[map[string]string]
	volumes   catalog[*volume]
	dicts     catalog[*dict]
	images    map[string]*image   // by id
	recipes   map[string]*image   // by recipe: the latest image of each
	sandboxes map[string]*sandbox // by id, including finished ones
	byInnerID map[string]*sandbox // by the backend's sandbox id
	execs     map[string]*execution
	handles   map[string]*handle // open files, by descriptor
	fileExecs map[string]*fileExec
}

// New starts a server on the loopback interface. The caller must call Close.
func New(opts Options) (*Server, error) {
	s := &Server{
		opts: opts, log: opts.Log,
		apps: newCatalog[struct{}]("App", "ap-"), secrets: newCatalog[map[string]string]("Secret", "st-"),
		volumes: newCatalog[*volume]("Volume", "vo-"), dicts: newCatalog[*dict]("Dict", "di-"),
		images: map[string]*image{}, recipes: map[string]*image{},
		sandboxes: map[string]*sandbox{}, byInnerID: map[string]*sandbox{},
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
	s.tasks.Go(func() { _ = s.grpc.Serve(s.listener) }) // returns after Stop
	s.tasks.Go(s.watchBackend)
	return s, nil
}

// startListeners creates the directories and starts the listeners.
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
		if err := s.listener.Close(); !errors.Is(err, net.ErrClosed) { // grpc has closed it
			return err
		}
		return nil
	})
	if s.blobs, err = newBlobStore(s.filePath("blobs")); err != nil {
		return err
	}
	s.closers = append(s.closers, s.blobs.stopServing)
	if s.registry, err = newRegistry(s.filePath("layers")); err != nil {
		return err
	}
	s.closers = append(s.closers, s.registry.stopServing)
	return nil
}

// closeListeners closes what startListeners started.
func (s *Server) closeListeners() (err error) {
	for _, f := range s.closers {
		err = errors.Join(err, f())
	}
	return err
}

// Close ends every call and every sandbox, and waits for them. A second Close does nothing.
func (s *Server) Close() (err error) {
	s.closed.Do(func() {
		s.stop()
		s.grpc.Stop()
		s.tasks.Wait()
		err = errors.Join(s.closeListeners(), s.removeLeftovers())
	})
	return err
}

// removeLeftovers removes backend sandboxes whose removal failed earlier.
func (s *Server) removeLeftovers() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTime)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.byInnerID {
		inner, getErr := s.opts.Backend.Get(ctx, id)
		if getErr == nil {
			getErr = inner.Remove(ctx, atoll.RemoveVolumes())
		}
		if getErr != nil && atoll.KindOf(getErr) != atoll.ErrNotFound {
			err = errors.Join(err, getErr)
		}
	}
	return err
}

// URL returns the value for the variable MODAL_SERVER_URL.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() }

// TokenID returns the token id that clients must send.
func (s *Server) TokenID() string { return s.opts.TokenID }

// TokenSecret returns the token secret that clients must send.
func (s *Server) TokenSecret() string { return s.opts.TokenSecret }

// Sandboxes returns the names of unfinished sandboxes, by their ids.
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

// nextTime returns the current time, but a later one for each call, since lists use times as their
// page positions. The caller holds mu.
func (s *Server) nextTime() time.Time {
	now := time.Now()
	if next := s.last.Add(time.Millisecond); now.Before(next) {
		now = next
	}
	s.last = now
	return now
}

// unixSeconds returns t in the form of the protocol. It returns 0 for the zero time.
func unixSeconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMicro()) / 1e6
}

// newID returns an id with 22 random letters and digits, like those of the service.
func newID(prefix string) string { return prefix + rand.Text()[:22] }

// timeoutChan returns a channel that fires after secs, and a function that stops it.
func timeoutChan(secs float32) (<-chan time.Time, func()) {
	t := time.NewTimer(time.Duration(float64(max(0, secs)) * float64(time.Second)))
	return t.C, func() { t.Stop() }
}
