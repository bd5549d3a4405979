package s3

import (
	"context"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/smithy-go/middleware"

	"github.com/seed46cd37a8/atoll/internal/awsclient"
)

// clientOptions returns the options of the AWS client.
func (o *Options) clientOptions() awsclient.Options {
	c := awsclient.Options{
		Region: o.Region, CA: o.CA, Attempts: o.Attempts, Backoff: o.Backoff, Stall: o.Stall, Retryable: isRetryable,
	}
	if o.Credentials != nil {
		c.Credentials = func(ctx context.Context) (awsclient.Credentials, error) {
			keys, err := o.Credentials(ctx)
			return awsclient.Credentials(keys), err
		}
	}
	return c
}

// signBodies has the AWS SDK sign the SHA-256 of request bodies over TLS, too, where it
// would omit it.
func signBodies(stack *middleware.Stack) error {
	sum := &v4.ComputePayloadSHA256{}
	if _, ok := stack.Finalize.Get(sum.ID()); !ok {
		return nil
	}
	_, err := stack.Finalize.Swap(sum.ID(), sum)
	return err
}

// backoffDelay returns the wait after an attempt, at most most.
func backoffDelay(attempt int, most time.Duration) time.Duration {
	return awsclient.Backoff(attempt, most)
}

// isRetryable extends the SDK's rules: it never retries after an error of the caller's
// reader, and does after a conflict with another writer.
func isRetryable(err error) aws.Ternary {
	var reader *readerError
	if errors.As(err, &reader) {
		return aws.FalseTernary
	}
	if code := codeOf(err); code == codeBusy || code == "OperationAborted" {
		return aws.TrueTernary
	}
	return aws.UnknownTernary
}
