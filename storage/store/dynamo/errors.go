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

// codeNoTable is the error code for a missing table.
const codeNoTable = "ResourceNotFoundException"

// errNotDynamo is the error for an answer that DynamoDB does not give.
var errNotDynamo = errors.New("the answer is not from DynamoDB")

// wrapError gives an error its kind and adds advice. It returns nil for nil.
func (s *Store) wrapError(ctx context.Context, op, id string, err error) error {
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
	kind, text := s.classifyError(err)
	return atoll.E(op, id, kind, &serviceError{text, err})
}

// A serviceError describes an error of the service.
type serviceError struct {
	text string
	err  error
}

func (e *serviceError) Error() string { return e.text }
func (e *serviceError) Unwrap() error { return e.err }

// serviceName returns the endpoint of the service, or AWS.
func (s *Store) serviceName() string {
	if s.endpoint == "" {
		return "AWS"
	}
	return s.endpoint
}

// classifyError returns the kind and a description of an error.
func (s *Store) classifyError(err error) (atoll.Kind, string) {
	var creds *awsclient.CredentialsError
	if errors.As(err, &creds) {
		return atoll.ErrDenied, creds.Advice(s.serviceName())
	}
	if kind, text := s.classifyCode(err); kind != "" {
		return kind, text
	}
	if text := awsclient.DescribeUnreachable(err, s.serviceName()); text != "" {
		return atoll.ErrUnavailable, text
	}
	return s.classifyStatus(err)
}

// classifyCode classifies answers with an error code of DynamoDB. It returns "" for other errors.
func (s *Store) classifyCode(err error) (atoll.Kind, string) {
	var api smithy.APIError
	if !errors.As(err, &api) {
		return "", ""
	}
	says := api.ErrorMessage()
	switch code := api.ErrorCode(); code {
	case codeNoTable:
		// Not ErrNotExist, which would mean a missing record.
		return atoll.ErrUnavailable, fmt.Sprintf("a table of %s* does not exist at %s in region %s: restart the server, which creates it, or correct prefix and region",
			s.prefix, s.serviceName(), s.client.Options().Region)
	case "AccessDeniedException", "AccessDenied", "OptInRequired":
		return atoll.ErrDenied, fmt.Sprintf("the credentials do not allow this: change the policy of their user for the tables %s* and their indexes (%s)", s.prefix, says)
	case "UnrecognizedClientException", "InvalidClientTokenId", "InvalidAccessKeyId":
		return atoll.ErrDenied, fmt.Sprintf("%s does not know the access key", s.serviceName())
	case "InvalidSignatureException", "SignatureDoesNotMatch":
		return atoll.ErrDenied, "the signature is wrong: the secret key does not belong to the access key, the clock of this machine is wrong, or a proxy on the way changes requests (" + says + ")"
	case "ExpiredTokenException", "ExpiredToken", "RequestExpired":
		return atoll.ErrDenied, "the credentials are no longer valid: get new ones"
	case "MissingAuthenticationTokenException", "MissingAuthenticationToken", "IncompleteSignatureException", "IncompleteSignature":
		return atoll.ErrDenied, fmt.Sprintf("%s does not accept the signature (%s)", s.serviceName(), says)
	case "ItemCollectionSizeLimitExceededException":
		return atoll.ErrExhausted, "the messages of a conversation, or the sandboxes of an account, exceed 10 GB: start a new one"
	case "LimitExceededException", "AccountLimitExceededException":
		return atoll.ErrExhausted, "limit of the account at " + s.serviceName() + ": " + says
	case "ProvisionedThroughputExceededException", "ThrottlingException", "Throttling", "RequestLimitExceeded", "TooManyRequestsException",
		"InternalServerError", "InternalFailure", "ServiceUnavailable", "ReplicatedWriteConflictException", "TransactionConflictException":
		return atoll.ErrUnavailable, fmt.Sprintf("%s is busy, or has a problem: try again later (%s: %s)", s.serviceName(), code, says)
	case "ValidationException":
		if strings.Contains(says, "maximum allowed size") {
			return atoll.ErrExhausted, says
		}
		return atoll.ErrInternal, fmt.Sprintf("%s does not accept the request: %s", s.serviceName(), says)
	case "UnknownOperationException":
		return atoll.ErrUnsupported, fmt.Sprintf("%s does not support this operation", s.serviceName())
	}
	return "", ""
}

// classifyStatus classifies answers without an error code of DynamoDB by their HTTP status.
func (s *Store) classifyStatus(err error) (atoll.Kind, string) {
	status := awsclient.Status(err)
	said := fmt.Sprintf("%s says %d %s", s.serviceName(), status, http.StatusText(status))
	if code := awsclient.Code(err); code != "" && code != "UnknownError" {
		said = fmt.Sprintf("%s says %s (%d)", s.serviceName(), code, status)
	}
	var bad *smithy.DeserializationError
	var syntax *json.SyntaxError
	switch {
	case status >= 500, status == http.StatusTooManyRequests, status == http.StatusRequestTimeout:
		return atoll.ErrUnavailable, said + ": try again later"
	case errors.Is(err, errNotDynamo), errors.As(err, &bad), errors.As(err, &syntax), status >= 300 && status < 400, status == http.StatusNotFound:
		return atoll.ErrUnavailable, fmt.Sprintf("%s is not a DynamoDB service: correct the endpoint", s.serviceName())
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return atoll.ErrDenied, said + ": the credentials do not allow it"
	case status >= 400:
		return atoll.ErrInternal, fmt.Sprintf("%s: %v", said, awsclient.Root(err))
	}
	return atoll.KindOf(err), fmt.Sprintf("%s: %v", s.serviceName(), awsclient.Root(err))
}
