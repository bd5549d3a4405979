package dynamo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/aws/smithy-go"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/awsclient"
)

// codeNoTable is that of a table that is not there.
const codeNoTable = "ResourceNotFoundException"

// errNotDynamo is that of an answer that no service gives.
var errNotDynamo = errors.New("the answer is not one of DynamoDB")

// fail is an error of a method: of which kind, and what to do about it.
func (s *Store) fail(ctx context.Context, op, id string, err error) error {
	if err == nil {
		return nil
	}
	var known *atoll.Error
	if errors.As(err, &known) {
		return atoll.E(op, id, known.Kind, known.Err)
	}
	if ended := ctx.Err(); ended != nil {
		return atoll.E(op, id, atoll.KindOf(ended), ended)
	}
	kind, text := s.explain(err)
	return atoll.E(op, id, kind, &explained{text, err})
}

// An explained error says what its cause means.
type explained struct {
	text string
	err  error
}

func (e *explained) Error() string { return e.text }
func (e *explained) Unwrap() error { return e.err }

// where is the service, for sentences.
func (s *Store) where() string {
	if s.endpoint == "" {
		return "AWS"
	}
	return s.endpoint
}

// explain is the kind of an error and a sentence.
func (s *Store) explain(err error) (atoll.Kind, string) {
	var creds *awsclient.CredentialsError
	if errors.As(err, &creds) {
		return atoll.ErrDenied, creds.Advice(s.where())
	}
	if kind, text := s.explainCode(err); kind != "" {
		return kind, text
	}
	if text := awsclient.DescribeUnreachable(err, s.where()); text != "" {
		return atoll.ErrUnavailable, text
	}
	return s.explainStatus(err)
}

// explainCode is about answers that have a code of DynamoDB.
func (s *Store) explainCode(err error) (atoll.Kind, string) {
	var api smithy.APIError
	if !errors.As(err, &api) {
		return "", ""
	}
	says := api.ErrorMessage()
	switch code := api.ErrorCode(); code {
	case codeNoTable:
		// Not ErrNotExist: that would be one of what is in it.
		return atoll.ErrUnavailable, fmt.Sprintf("a table of %s* is not there at %s, in the region %s: start the server again, which makes it, or correct prefix and region",
			s.prefix, s.where(), s.client.Options().Region)
	case "AccessDeniedException", "AccessDenied", "OptInRequired":
		return atoll.ErrDenied, fmt.Sprintf("the credentials do not allow this: the policy of their user has to, for the tables %s* and their indexes (%s)", s.prefix, says)
	case "UnrecognizedClientException", "InvalidClientTokenId", "InvalidAccessKeyId":
		return atoll.ErrDenied, fmt.Sprintf("%s does not know the access key", s.where())
	case "InvalidSignatureException", "SignatureDoesNotMatch":
		return atoll.ErrDenied, "the signature is wrong: the secret key does not belong to the access key, the clock of this machine is wrong, or a proxy on the way changes requests (" + says + ")"
	case "ExpiredTokenException", "ExpiredToken", "RequestExpired":
		return atoll.ErrDenied, "the credentials are no longer valid: get others"
	case "MissingAuthenticationTokenException", "MissingAuthenticationToken", "IncompleteSignatureException", "IncompleteSignature":
		return atoll.ErrDenied, fmt.Sprintf("%s does not take the signature (%s)", s.where(), says)
	case "ItemCollectionSizeLimitExceededException":
		return atoll.ErrExhausted, "the messages of a conversation, or the sandboxes of an account, may be 10 GB: begin another"
	case "LimitExceededException", "AccountLimitExceededException":
		return atoll.ErrExhausted, "a limit of the account at " + s.where() + ": " + says
	case "ProvisionedThroughputExceededException", "ThrottlingException", "Throttling", "RequestLimitExceeded", "TooManyRequestsException",
		"InternalServerError", "InternalFailure", "ServiceUnavailable", "ReplicatedWriteConflictException", "TransactionConflictException":
		return atoll.ErrUnavailable, fmt.Sprintf("%s is busy, or has a problem: try again later (%s: %s)", s.where(), code, says)
	case "ValidationException":
		if strings.Contains(says, "maximum allowed size") {
			return atoll.ErrExhausted, says
		}
		return atoll.ErrInternal, fmt.Sprintf("%s does not take what is asked for: %s", s.where(), says)
	case "UnknownOperationException":
		return atoll.ErrUnsupported, fmt.Sprintf("%s cannot do this", s.where())
	}
	return "", ""
}

// explainStatus is about answers that say no more than their status, or are none of
// DynamoDB.
func (s *Store) explainStatus(err error) (atoll.Kind, string) {
	status := awsclient.Status(err)
	said := fmt.Sprintf("%s says %d %s", s.where(), status, http.StatusText(status))
	if code := awsclient.Code(err); code != "" && code != "UnknownError" {
		said = fmt.Sprintf("%s says %s (%d)", s.where(), code, status)
	}
	var bad *smithy.DeserializationError
	var syntax *json.SyntaxError
	switch {
	case status >= 500, status == http.StatusTooManyRequests, status == http.StatusRequestTimeout:
		return atoll.ErrUnavailable, said + ": try again later"
	case errors.Is(err, errNotDynamo), errors.As(err, &bad), errors.As(err, &syntax), status >= 300 && status < 400, status == http.StatusNotFound:
		return atoll.ErrUnavailable, fmt.Sprintf("what answers at %s does not speak like DynamoDB: correct the endpoint", s.where())
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return atoll.ErrDenied, said + ": the credentials do not allow it"
	case status >= 400:
		return atoll.ErrInternal, fmt.Sprintf("%s: %v", said, awsclient.Root(err))
	}
	return atoll.KindOf(err), fmt.Sprintf("%s: %v", s.where(), awsclient.Root(err))
}
