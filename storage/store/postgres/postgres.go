// Package postgres implements package store in a PostgreSQL database, for servers on many machines. It needs
// PostgreSQL 13 or later.
//
//	server, err := postgres.New(postgres.Options{URL: "postgres://atoll@db.example.com/atoll"})
//	if err != nil {
//		return err
//	}
//	s := server.Store()
//	defer s.Close()
package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
	"github.com/seed46cd37a8/atoll/storage/store/postgres/settings"
	"github.com/seed46cd37a8/atoll/storage/store/sqlstore"
)

// Options configure a Server.
type Options struct {
	// URL is the address of the database: postgres://user@host:port/database, with the parameters of libpq. Missing
	// parts come from the variables and files of libpq (PGHOST, PGPASSWORD, ~/.pgpass). The tables are in the schema
	// of search_path, or in DefaultSchema. For a host other than this machine, the connection uses TLS and verifies
	// the host's name, unless sslmode says otherwise.
	URL string
	// Password returns the password for each connection. nil means that the password is in URL, or where libpq finds
	// it.
	Password func() (string, error)
	// Lease is the time for which a killed program still counts as running; 0 means settings.DefaultLease. A running program
	// renews its lease three times in that time.
	Lease time.Duration
}

// DefaultSchema is the schema of the tables if the URL has no search_path.
const DefaultSchema = "atoll"

const (
	// callTimeout bounds a call, with all its waits and retries.
	callTimeout = 10 * time.Second
	// maxConnections is the maximum number of connections of a Server. Connections that are unused for idleTimeout
	// are closed.
	maxConnections = 8
	idleTimeout    = time.Minute
)

// A Server is a database with a pool of connections for its Stores.
type Server struct {
	config      *pgx.ConnConfig
	schema      string
	location    string // host, port and database, for messages; has no secrets
	password    func() (string, error)
	callTimeout time.Duration
	leaseTerm   term // of holders

	preparing chan struct{} // semaphore of one: the caller that prepares the schema

	mu    sync.Mutex
	users int     // number of open stores
	db    *sql.DB // nil if users is 0
	ready bool    // the schema is current
}

// New returns the server that opts describe. It does not connect: the first call that needs the database reports
// connection errors. Kinds: ErrInvalid.
func New(opts Options) (*Server, error) {
	config, err := parseURL(opts.URL)
	if err != nil {
		return nil, atoll.E("open", "", atoll.ErrInvalid, err)
	}
	s := &Server{config: config, schema: DefaultSchema, password: opts.Password, callTimeout: callTimeout, leaseTerm: term(cmp.Or(opts.Lease, settings.DefaultLease)), preparing: make(chan struct{}, 1)}
	s.location = net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))) + "/" + config.Database
	if path := config.RuntimeParams["search_path"]; path != "" {
		s.schema = path
	}
	for name, value := range map[string]string{
		"search_path":      s.schema,
		"application_name": "atoll",
		// A client that goes silent within a transaction must not block others for long.
		"idle_in_transaction_session_timeout": strconv.FormatInt(2*callTimeout.Milliseconds(), 10),
		"statement_timeout":                   strconv.FormatInt(callTimeout.Milliseconds(), 10),
	} {
		if config.RuntimeParams[name] == "" {
			config.RuntimeParams[name] = value
		}
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = callTimeout / 2
	}
	return s, nil
}

var schemaName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`) })

// parseURL parses a URL and adds verified TLS if it has no sslmode.
func parseURL(text string) (*pgx.ConnConfig, error) {
	if err := settings.CheckURL(text); err != nil {
		return nil, err
	}
	u, _ := url.Parse(text) // CheckURL has parsed it
	config, err := pgx.ParseConfig(text)
	if err != nil {
		return nil, err // has no password
	}
	if name := config.RuntimeParams["search_path"]; name != "" && !schemaName().MatchString(name) {
		return nil, errors.New("search_path: use the name of one schema, of lower-case letters, digits and _")
	}
	if u.Query().Has("sslmode") || os.Getenv("PGSSLMODE") != "" || isLocal(config) {
		return config, nil
	}
	q := u.Query()
	q.Set("sslmode", "verify-full")
	u.RawQuery = q.Encode()
	return pgx.ParseConfig(u.String())
}

// isLocal reports whether all hosts of config are this machine.
func isLocal(config *pgx.ConnConfig) bool {
	hosts := []string{config.Host}
	for _, f := range config.Fallbacks {
		hosts = append(hosts, f.Host)
	}
	return !slices.ContainsFunc(hosts, func(host string) bool {
		ip := net.ParseIP(host)
		return !strings.HasPrefix(host, "/") && host != "localhost" && (ip == nil || !ip.IsLoopback())
	})
}

// Address returns the host, port and name of the database, without a secret.
func (s *Server) Address() string { return s.location }

// Store returns a store in the database. It connects at the first call that needs the database.
func (s *Server) Store() *Store {
	x := &Store{server: s}
	x.Store = sqlstore.New(tables{x})
	return x
}

// A Store implements the interfaces of package store in a PostgreSQL database.
type Store struct {
	sqlstore.Store
	server *Server

	mu     sync.Mutex
	closed bool
	open   bool // it counts in server.users

	leaseMu sync.Mutex // guards lease
	lease   *lease     // lease of this program; nil before the first call of Holder
}

// Exists returns true: the database must exist. The first call that needs the tables creates them.
func (x *Store) Exists() bool { return true }

// Settle records that the sandboxes of a scope are those of place, such as a Docker Engine. It fails if the store has
// sandboxes of another place, since this program would not find them. Kinds: ErrConflict (another place is on
// record), and those of store.Store.
func (x *Store) Settle(ctx context.Context, scope, place string) error {
	t := tables{x}
	return t.Failed("open", scope, t.Write(ctx, func(ctx context.Context, tx sqlstore.Tx) error {
		var have string
		err := tx.QueryRowContext(ctx, `INSERT INTO places (scope, place) VALUES (?, ?)
			ON CONFLICT (scope) DO UPDATE SET place = places.place RETURNING place`, scope, place).Scan(&have)
		if err == nil && have != place {
			err = atoll.Errorf("", "", atoll.ErrConflict, "the store has the sandboxes that %s created in %s, but this program uses %s: "+
				"servers that share a store must reach the same sandboxes; otherwise give each its own search_path", scope, have, place)
		}
		return err
	}))
}

// Close implements store.Store.
func (x *Store) Close() error {
	x.mu.Lock()
	if x.closed {
		x.mu.Unlock()
		return nil
	}
	x.closed = true
	open := x.open
	x.mu.Unlock()
	if !open {
		return nil
	}
	x.leaseMu.Lock()
	defer x.leaseMu.Unlock()
	if x.lease != nil {
		x.lease.releaseLease(x.server.db)
	}
	return x.server.removeUser()
}

// openDB returns the connections, and opens them at the first call. Kinds: ErrUnavailable (the store is closed).
func (x *Store) openDB(ctx context.Context) (*sql.DB, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return nil, atoll.Errorf("open", x.server.location, atoll.ErrUnavailable, "the store is closed")
	}
	if !x.open {
		x.server.addUser()
		x.open = true
	}
	return x.server.db, nil
}

// addUser counts an open store, and opens the connections for the first one.
func (s *Server) addUser() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users++; s.users > 1 {
		return
	}
	s.db = stdlib.OpenDB(*s.config, stdlib.OptionBeforeConnect(func(_ context.Context, c *pgx.ConnConfig) error {
		if s.password == nil {
			return nil
		}
		password, err := s.password()
		c.Password = password
		return err
	}))
	s.db.SetMaxOpenConns(maxConnections)
	s.db.SetMaxIdleConns(maxConnections)
	s.db.SetConnMaxIdleTime(idleTimeout)
}

// removeUser discounts an open store, and closes the connections after the last one.
func (s *Server) removeUser() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users > 0 {
		return nil
	}
	s.ready = false
	db := s.db
	s.db = nil
	return db.Close()
}

var (
	_ store.Store         = (*Store)(nil)
	_ store.Conversations = (*Store)(nil)
	_ store.Keys          = (*Store)(nil)
	_ store.Audit         = (*Store)(nil)
)
