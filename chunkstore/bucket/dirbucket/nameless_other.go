//go:build !linux

package dirbucket

import (
	"errors"
	"os"
)

// Elsewhere files are staged under a name.

func openNameless(string) (*os.File, error) { return nil, errors.ErrUnsupported }

func linkNameless(*os.File, string) error { return errors.ErrUnsupported }
