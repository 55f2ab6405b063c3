//go:build !linux

package dirbucket_test

import "errors"

func mountTmpfs(string) error { return errors.ErrUnsupported }

func unmount(string) error { return errors.ErrUnsupported }
