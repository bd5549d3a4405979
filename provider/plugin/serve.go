package plugin

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api"
)

// A Request is the argument of a plugin's open function.
type Request struct {
	StateDir string
	Settings json.RawMessage // empty when there are none
	Probing  bool
	Guest    string // path of the guest's program; empty means the one that this program has
	// Resources are the default resources of sandboxes; only the fields that are set count.
	Resources atoll.Resources
	Log       *slog.Logger // lines that Atoll logs
}

// A Placer is a Provider whose sandboxes are not on the machine that it runs on. Place names
// where they are, such as a cluster: providers of the same place have the same name for it.
type Placer interface {
	Place(ctx context.Context) (string, error)
}

// ServeProvider is the main function of a program whose plugin is a provider. It returns the
// exit status. It serves the provider that open returns until stdin ends, and then closes it.
func ServeProvider(name string, open func(ctx context.Context, r Request) (atoll.Provider, error)) int {
	return Serve(name, func(ctx context.Context, r Request) (Service, error) {
		p, err := open(ctx, r)
		if err != nil {
			return Service{}, err
		}
		h, err := api.NewHandler(p, api.Options{Log: r.Log})
		if err != nil {
			return Service{}, errors.Join(err, p.Close())
		}
		return Service{
			Serve: func(ctx context.Context, l net.Listener) error { return api.Serve(ctx, h, l) },
			Close: p.Close,
			Place: placeOf(p),
		}, nil
	})
}

// ServeBackend is ServeProvider for the provider that NewProvider returns for a backend.
func ServeBackend(name string, open func(ctx context.Context, r Request) (atoll.Info, Backend, error)) int {
	return ServeProvider(name, func(ctx context.Context, r Request) (atoll.Provider, error) {
		info, b, err := open(ctx, r)
		if err != nil {
			return nil, err
		}
		return NewProvider(info, b, r.Log)
	})
}

// placeOf returns the Place of a Placer, and nil for other providers.
func placeOf(p atoll.Provider) func(ctx context.Context) (string, error) {
	if placer, ok := p.(Placer); ok {
		return placer.Place
	}
	return nil
}

// A Service has the functions of a plugin's program.
type Service struct {
	// Serve serves HTTP on l until ctx ends, and closes l.
	Serve func(ctx context.Context, l net.Listener) error
	// Close is called after Serve has returned; nil does nothing.
	Close func() error
	// Place implements that of a Placer; nil means that everything is on this machine.
	Place func(ctx context.Context) (string, error)
}

// Serve is the main function of a program whose plugin is served by what open returns. It
// returns the exit status.
func Serve(name string, open func(ctx context.Context, r Request) (Service, error)) int {
	if len(os.Args) != 2 || os.Args[1] != Argument {
		fmt.Fprintf(os.Stderr, "atoll-%s is a part of atoll, which starts it when the configuration names %s: atoll doctor says whether it works\n", name, name)
		return 2
	}
	ignoreBrokenPipes()
	if err := servePlugin(os.Stdin, os.Stdout, open); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func servePlugin(stdin io.Reader, stdout io.Writer, open func(ctx context.Context, r Request) (Service, error)) error {
	input := bufio.NewReader(stdin)
	line, err := input.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("stdin: %w", err)
	}
	var start Start
	if err := json.Unmarshal(line, &start); err != nil {
		return fmt.Errorf("the line on stdin: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // until the other side has closed it, or has been killed
		_, _ = io.Copy(io.Discard, input)
		cancel()
	}()
	defer removeSocket(start.Socket)
	s, l, place, err := openService(ctx, start, open)
	reply := Reply{Protocol: Protocol, Place: place}
	if err != nil {
		reply.Error = api.MarshalError(err)
	}
	answer, marshalErr := json.Marshal(reply)
	if marshalErr != nil {
		return marshalErr
	}
	if _, writeErr := stdout.Write(append(answer, '\n')); writeErr != nil && err == nil {
		cancel() // nobody is there to be served
	}
	if err != nil {
		return nil // it is in the reply
	}
	err = s.Serve(ctx, l)
	if s.Close != nil {
		err = errors.Join(err, s.Close())
	}
	return err
}

// openService opens what is served, and listens.
func openService(ctx context.Context, start Start, open func(ctx context.Context, r Request) (Service, error)) (s Service, l net.Listener, place string, err error) {
	if start.Protocol != Protocol {
		return s, nil, "", atoll.Errorf("open", "", atoll.ErrUnavailable, "this program speaks version %d of the protocol, not %d: install the one that belongs to atoll", Protocol, start.Protocol)
	}
	level := slog.LevelInfo
	if start.Debug {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	if s, err = open(ctx, Request{StateDir: start.StateDir, Settings: start.Settings, Probing: start.Probing, Guest: start.Guest, Resources: start.Resources, Log: log}); err != nil {
		return s, nil, "", err
	}
	if start.Place && s.Place != nil {
		place, err = s.Place(ctx)
	}
	if err == nil {
		l, err = listenSocket(ctx, start.Socket)
	}
	if err != nil && s.Close != nil {
		err = errors.Join(err, s.Close())
	}
	return s, l, place, err
}

// removeSocket removes the socket and its directory: Atoll may have been killed.
func removeSocket(path string) {
	_ = os.Remove(path)
	_ = os.Remove(filepath.Dir(path))
}

// HTTPService serves h, and closes what close closes.
func HTTPService(h http.Handler, close func() error) Service {
	return Service{Close: close, Serve: func(ctx context.Context, l net.Listener) error {
		server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
		stop := context.AfterFunc(ctx, func() { _ = server.Close() })
		defer stop()
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}}
}
