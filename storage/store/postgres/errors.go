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

// Codes of PostgreSQL, and the first two characters of those of a class.
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

// code is that of an error of the server, "" of others.
func code(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// isRetried reports whether what failed so may be done again, and may succeed then.
func isRetried(err error) bool {
	var known *atoll.Error
	if err == nil || errors.As(err, &known) {
		return false
	}
	c := code(err)
	return c == serialization || c == deadlock || isBroken(err)
}

// isBroken reports whether a connection broke that there was. One that could not be made
// is none.
func isBroken(err error) bool {
	var connect *pgconn.ConnectError
	var network *net.OpError
	var system *os.SyscallError
	var made *notMade
	switch c := code(err); {
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

// Failed implements store.Database.
func (t tables) Failed(op, id string, err error) error {
	var known *atoll.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known) && known.Op == "":
		return atoll.Errorf(op, id, known.Kind, "store %s: %w", t.server.where, known.Err)
	case errors.As(err, &known), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	kind, advice := explain(err)
	return atoll.Errorf(op, id, kind, "store %s: %s: %w", t.server.where, advice, err)
}

// explain is the kind of an error of the database, and what to do about it.
func explain(err error) (atoll.Kind, string) {
	var connect *pgconn.ConnectError
	switch c := code(err); {
	case c == noDatabase:
		return atoll.ErrUnavailable, "make the database"
	case c == noTable, c == noSchema:
		return atoll.ErrUnavailable, "somebody has removed its tables"
	case c == cannotConnectNow, c == adminShutdown, c == crashShutdown:
		return atoll.ErrUnavailable, "the server starts, or ends"
	case c == queryCanceled, c == lockNotAvailable, c == serialization, c == deadlock:
		return atoll.ErrUnavailable, "others have been in the way for too long"
	case c == readOnly:
		return atoll.ErrUnavailable, "it is a copy that cannot be written to: add target_session_attrs=read-write if there are several hosts"
	case c == diskFull:
		return atoll.ErrExhausted, "the server's disk is full"
	case c == noPrivilege:
		return atoll.ErrDenied, "the user may not do this: grant it, or let another one make the schema"
	case c == notInEncoding:
		return atoll.ErrInvalid, "there is a character that has no place in it"
	case strings.HasPrefix(c, authClass):
		return atoll.ErrDenied, "look at the user and the password"
	case strings.HasPrefix(c, resourcesClass):
		return atoll.ErrUnavailable, "the server has too much to do"
	case strings.HasPrefix(c, corruptedClass):
		return atoll.ErrInternal, "it is damaged"
	case c != "" && !strings.HasPrefix(c, connectionClass):
		return atoll.ErrInternal, "it cannot be used"
	case errors.As(err, &connect):
		return atoll.ErrUnavailable, "it cannot be reached"
	case isBroken(err):
		return atoll.ErrUnavailable, "the connection broke"
	}
	return atoll.KindOf(err), "it cannot be used"
}

// Taken implements store.Database.
func (t tables) Taken(err error) bool { return code(err) == uniqueViolation }
