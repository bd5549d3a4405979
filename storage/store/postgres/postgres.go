// Package postgres keeps what package store keeps in a database of PostgreSQL, for
// servers on many machines. It needs PostgreSQL 13 or later.
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
	"github.com/seed46cd37a8/atoll/storage/store/sqlstore"
)

// Options say which database.
type Options struct {
	// URL is where it is: postgres://user@host:port/database, with the parameters that
	// PostgreSQL's own programs know. What it lacks they would have from their variables
	// and files (PGHOST, PGPASSWORD, ~/.pgpass) is from there. The tables are in the schema
	// of search_path, or atoll. A host that is not this one is asked with TLS, and has to
	// prove that it is the one of that name, unless sslmode says otherwise.
	URL string
	// Password returns the password, for each connection; nil means that it is in URL, or
	// where PostgreSQL's own programs have it.
	Password func() (string, error)
	// Lease is how long a program that was killed counts as one that runs; 0 means
	// DefaultLease. It is renewed three times in that time.
	Lease time.Duration
}

// DefaultLease is Options.Lease if that is not said, MinLease the shortest there may be.
const (
	DefaultLease = 30 * time.Second
	MinLease     = 2 * time.Second
)

// DefaultSchema is where tables are if URL does not say.
const DefaultSchema = "atoll"

const (
	// patience is how long a call may take, with all that is waited for in it.
	patience = 10 * time.Second
	// connections is how many there may be of a Server. They are closed when nobody has
	// used them for idle.
	connections = 8
	idle        = time.Minute
)

// A Server is a database, to which its Stores share connections.
type Server struct {
	config   *pgx.ConnConfig
	schema   string
	where    string // for sentences; it has no secrets
	password func() (string, error)
	patience time.Duration
	lease    term // of holders

	opening chan struct{} // holds one value while somebody opens it

	mu    sync.Mutex
	users int     // stores that have it open
	db    *sql.DB // nil while there are none
	ready bool    // its tables are those that this program knows
}

// CheckURL says what is wrong with a URL.
func CheckURL(text string) error {
	_, err := parse(text)
	return err
}

// HasPassword reports whether a URL has one.
func HasPassword(text string) bool {
	u, err := url.Parse(text)
	if err != nil {
		return true // perhaps
	}
	_, has := u.User.Password()
	return has || u.Query().Has("password")
}

// New returns the server that opts name. It touches nothing: what cannot be is said by the
// first call that needs it. Kinds: ErrInvalid.
func New(opts Options) (*Server, error) {
	config, err := parse(opts.URL)
	if err != nil {
		return nil, atoll.E("open", "", atoll.ErrInvalid, err)
	}
	s := &Server{config: config, schema: DefaultSchema, password: opts.Password, patience: patience, lease: term(cmp.Or(opts.Lease, DefaultLease)), opening: make(chan struct{}, 1)}
	s.where = net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))) + "/" + config.Database
	if given := config.RuntimeParams["search_path"]; given != "" {
		s.schema = given
	}
	for name, value := range map[string]string{
		"search_path":      s.schema,
		"application_name": "atoll",
		// Who is not heard of in the middle of a transaction holds up nobody for long.
		"idle_in_transaction_session_timeout": strconv.FormatInt(2*patience.Milliseconds(), 10),
		"statement_timeout":                   strconv.FormatInt(patience.Milliseconds(), 10),
	} {
		if config.RuntimeParams[name] == "" {
			config.RuntimeParams[name] = value
		}
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = patience / 2
	}
	return s, nil
}

var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// parse is what a URL says, with TLS where it says nothing of that.
func parse(text string) (*pgx.ConnConfig, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return nil, errors.New("is not postgres://user@host:port/database") // without text, which may have a password
	}
	config, err := pgx.ParseConfig(text)
	if err != nil {
		return nil, err // which has no password
	}
	if name := config.RuntimeParams["search_path"]; name != "" && !schemaName.MatchString(name) {
		return nil, errors.New("search_path: is the name of one schema, of lower-case letters, digits and _")
	}
	if u.Query().Has("sslmode") || os.Getenv("PGSSLMODE") != "" || near(config) {
		return config, nil
	}
	q := u.Query()
	q.Set("sslmode", "verify-full")
	u.RawQuery = q.Encode()
	return pgx.ParseConfig(u.String())
}

// near reports whether nobody is on the way to any of the hosts.
func near(config *pgx.ConnConfig) bool {
	hosts := []string{config.Host}
	for _, f := range config.Fallbacks {
		hosts = append(hosts, f.Host)
	}
	return !slices.ContainsFunc(hosts, func(host string) bool {
		ip := net.ParseIP(host)
		return !strings.HasPrefix(host, "/") && host != "localhost" && (ip == nil || !ip.IsLoopback())
	})
}

// Where names the database, without a secret.
func (s *Server) Where() string { return s.where }

// Store returns what is in the database. It is opened when it is first needed.
func (s *Server) Store() *Store {
	x := &Store{server: s}
	x.Store = sqlstore.New(tables{x})
	return x
}

// Store is a store.Store, and a store.Conversations, in a database of PostgreSQL.
type Store struct {
	sqlstore.Store
	server *Server

	mu     sync.Mutex
	closed bool
	open   bool // it is one of the users of server

	taking sync.Mutex
	lease  *lease // by which its program is known to run; nil as long as nobody asked
}

// Exists is true: somebody has made the database. Its tables are made when they are first
// needed.
func (x *Store) Exists() bool { return true }

// Settle says that the sandboxes of a scope are those that a place has. Programs that reach
// others must not look for them there, as they would find none. Kinds: ErrConflict (they
// are those of another place), and those of store.Store.
func (x *Store) Settle(ctx context.Context, scope, place string) error {
	t := tables{x}
	return t.Failed("open", scope, t.Write(ctx, func(ctx context.Context, tx sqlstore.Tx) error {
		var have string
		err := tx.QueryRowContext(ctx, `INSERT INTO places (scope, place) VALUES (?, ?)
			ON CONFLICT (scope) DO UPDATE SET place = places.place RETURNING place`, scope, place).Scan(&have)
		if err == nil && have != place {
			err = atoll.Errorf("", "", atoll.ErrConflict, "the sandboxes of %s in it are those of %s, and here are those of %s: "+
				"servers that share a store reach the same sandboxes, or have search_paths of their own", scope, have, place)
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
	x.taking.Lock()
	defer x.taking.Unlock()
	if x.lease != nil {
		x.lease.giveUp(x.server.db)
	}
	return x.server.leave()
}

// database returns the connections, which are made if there are none yet.
func (x *Store) database(ctx context.Context) (*sql.DB, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return nil, atoll.Errorf("open", x.server.where, atoll.ErrUnavailable, "the store is closed")
	}
	if !x.open {
		x.server.enter()
		x.open = true
	}
	return x.server.db, nil
}

func (s *Server) enter() {
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
	s.db.SetMaxOpenConns(connections)
	s.db.SetMaxIdleConns(connections)
	s.db.SetConnMaxIdleTime(idle)
}

func (s *Server) leave() error {
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
