# All that the guest is there for. The last line but those of the machine's end is the verdict.
export PYTHONPATH=/opt/venus PYTHONUNBUFFERED=1 HOME=/root VENUS_BASE_TAR=/opt/venus/base.tar
export HYPOTHESIS_STORAGE_DIRECTORY=/tmp/hypothesis
eval "set -- $(cat arguments)"
python3 -m pytest -p no:cacheprovider -ra --color=no "$@"
status=$?
[ $status = 0 ] || journalctl --no-pager -n 200 -u 'venus-*'
echo "guest: exit status $status"
poweroff --force
