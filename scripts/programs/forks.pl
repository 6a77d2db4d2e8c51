# Forks children that fork children. Each builds a hash and sends its checksum through a pipe.
# Usage: forks.pl [SCALE]
use strict;
use warnings;

sub build {
    my ($seed) = @_;
    my %words;
    push @{ $words{ $_ * $seed % 701 } }, "word $_" for 1 .. 8000;
    my $sum = 0;
    for my $key (sort { $a <=> $b } keys %words) {
        $sum = ($sum * 31 + length(join ",", @{ $words{$key} }) + $key) % 1_000_003;
    }
    return $sum;
}

sub child {
    my ($seed, $depth) = @_;
    my $before = build($seed);
    pipe(my $read, my $write) or die "pipe: $!";
    my $pid = fork() // die "fork: $!";
    if ($pid == 0) {
        close $read;
        my $inner = $depth ? child($seed + 100, $depth - 1) : build($seed + 1);
        print $write "$before $inner";
        close $write;
        exit 0;
    }
    close $write;
    my $said = <$read>;
    waitpid($pid, 0);
    die "a child ended with $?" if $?;
    return $said . " " . build($seed);
}

my $scale = shift // 1;
print "$_: ", child($_, 2), "\n" for 1 .. 8 * $scale;
