package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"os"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed46cd37a8/atoll"
)

// Error codes (SQLSTATE) of PostgreSQL, and the first two characters of the codes of a class.
const (
	uniqueViolation  = "23505"
	serialization    = "40001"
	deadlock         = "40P01"
	adminShutdown    = "57P01"
	crashShutdown    = "57P02"
	cannotConnectNow = "57P03"
	queryCanceled    = "57014"
	lockNotAvailable = "55P03"
	diskFull         = "53100"
	noTable          = "42P01"
	noSchema         = "3F000"
	noDatabase       = "3D000"
	noPrivilege      = "42501"
	readOnly         = "25006"
	notInEncoding    = "22021"
	invalidParameter = "22023"

	connectionClass = "08"
	resourcesClass  = "53"
	authClass       = "28"
	corruptedClass  = "XX"
)

// sqlState returns the code of an error of the server, or "" for other errors.
func sqlState(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// isRetried reports whether an operation that failed with err may be repeated, and may succeed then.
func isRetried(err error) bool {
	var known *atoll.Error
	if err == nil || errors.As(err, &known) {
		return false
	}
	c := sqlState(err)
	return c == serialization || c == deadlock || isBroken(err)
}

// isBroken reports whether err means that an established connection broke. It is false if no connection could be
// established.
func isBroken(err error) bool {
	var connect *pgconn.ConnectError
	var network *net.OpError
	var system *os.SyscallError
	var made *notCommitted
	switch c := sqlState(err); {
	case errors.As(err, &connect), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false
	case c == adminShutdown, c == crashShutdown, strings.HasPrefix(c, connectionClass):
		return true
	case c != "":
		return false
	}
	return pgconn.SafeToRetry(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) ||
		errors.As(err, &network) || errors.As(err, &system) || errors.As(err, &made)
}

// Failed implements sqlstore.Database.
func (t tables) Failed(op, id string, err error) error {
	var known *atoll.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known) && known.Op == "":
		return atoll.Errorf(op, id, known.Kind, "store %s: %w", t.server.location, known.Err)
	case errors.As(err, &known), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	kind, advice := classifyError(err)
	return atoll.Errorf(op, id, kind, "store %s: %s: %w", t.server.location, advice, err)
}

// classifyError returns the kind of an error of the database, and advice.
func classifyError(err error) (atoll.Kind, string) {
	var connect *pgconn.ConnectError
	switch c := sqlState(err); {
	case c == noDatabase:
		return atoll.ErrUnavailable, "the database does not exist: create it"
	case c == noTable, c == noSchema:
		return atoll.ErrUnavailable, "its tables have been removed"
	case c == cannotConnectNow, c == adminShutdown, c == crashShutdown:
		return atoll.ErrUnavailable, "the server is starting or shutting down"
	case c == queryCanceled, c == lockNotAvailable, c == serialization, c == deadlock:
		return atoll.ErrUnavailable, "blocked by other clients for too long"
	case c == readOnly:
		return atoll.ErrUnavailable, "the server is a read-only replica: add target_session_attrs=read-write if there are several hosts"
	case c == diskFull:
		return atoll.ErrExhausted, "the server's disk is full"
	case c == noPrivilege:
		return atoll.ErrDenied, "the user lacks a privilege: grant it, or create the schema as another user"
	case c == notInEncoding:
		return atoll.ErrInvalid, "a text has a character that the database cannot store"
	case strings.HasPrefix(c, authClass):
		return atoll.ErrDenied, "check the user and the password"
	case strings.HasPrefix(c, resourcesClass):
		return atoll.ErrUnavailable, "the server is overloaded"
	case strings.HasPrefix(c, corruptedClass):
		return atoll.ErrInternal, "the database is damaged"
	case c != "" && !strings.HasPrefix(c, connectionClass):
		return atoll.ErrInternal, "unexpected error"
	case errors.As(err, &connect):
		return atoll.ErrUnavailable, "cannot connect"
	case isBroken(err):
		return atoll.ErrUnavailable, "the connection broke"
	}
	return atoll.KindOf(err), "unexpected error"
}

// Taken implements sqlstore.Database.
func (t tables) Taken(err error) bool { return sqlState(err) == uniqueViolation }
