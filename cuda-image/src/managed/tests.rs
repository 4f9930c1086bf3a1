//! Tests with text and cubins in the form that compilers write, created here.

use super::*;

pub(crate) const TEXT: &str = r#".version 9.0
.target sm_75
.address_size 64
	// .globl	work
.global .attribute(.managed) .align 4 .u32 counter = 5;
.visible .global .align 8 .attribute(.managed) .b8 big[8000];
.extern .global .attribute(.managed) .align 8 .b8 elsewhere[];
.weak .global .attribute(.managed) .align 4 .b8 pair[2][4] = {{7, 0x1}, {-1, 3, 0b11, 017}};
.global .attribute(.managed) .f32 halves[3] = {0f3F000000, 0fBF000000};
.global .attribute(.managed) .f64 wide = 0d4004000000000000;
.global .attribute(.managed) .v4 .u16 four = {1, 2, 3, 4};
.global .align 4 .u32 counter2 = 3;
.visible .global .align 8 .u64 into = counter;
.global .align 8 .u64 more[3] = {generic(big)+80, counter2, big+-8};
.file 1 "dir/counter;odd"
.visible .entry work(
	.param .u32 work_param_0
)
.maxntid 256
{
	.reg .b64 	%rd<33>;
	.loc	1 15 9, function_name $L__info_string0, inlined_at 1 2 3
	mov.u64 	%rd4, counter; // counter
	atom.global.add.u32 	%r6, [%rd4], 1;
	@%p1 ld.global.u32 	%r7, [big+24];
$L__BB0_2:
	st.global.v2.u32 	[pair-4], {%r1, %r2};
	mov.u64 	%rd5, counter2;
	{ // callseq 0
	.param .b64 param0;
	st.param.b64 	[param0+0], elsewhere;
	call.uni (retval0), counter_of, (param0);
	}
	atom.global.cas.b64 %rd7, [counter], %rd8, [big];
	@!%p2 bra 	$L__BB0_2;
	ret;
}
	.section	.debug_info
	{
.b8 3
.b64 counter
.b64 counter2
.b32 .debug_str+4
	}
"#;

fn places() -> Addresses {
    let names = ["counter", "big", "elsewhere", "pair", "halves", "wide", "four"];
    names.iter().zip(1u64..).map(|(name, n)| ((*name).to_owned(), n * 0x1_0000_0000)).collect()
}

fn image(text: &str) -> Image {
    Image::from_bytes(Kind::Ptx, format!("{text}\0").into_bytes().into()).unwrap()
}

#[test]
fn variables_of_text_are_read() {
    let found = image(TEXT).managed().unwrap();
    let variable = |bytes, initial: &[u8]| Managed { bytes, initial: initial.to_vec() };
    let expected = [
        ("big", variable(8000, &[])),
        ("counter", variable(4, &[5])),
        ("four", variable(8, &[1, 0, 2, 0, 3, 0, 4])),
        ("halves", variable(12, &[0, 0, 0, 0x3F, 0, 0, 0, 0xBF])),
        ("pair", variable(8, &[7, 1, 0, 0, 0xFF, 3, 3, 15])),
        ("wide", variable(8, &[0, 0, 0, 0, 0, 0, 4, 0x40])),
    ];
    assert_eq!(found, expected.map(|(n, v)| (n.to_owned(), v)).into());
    assert_eq!(image(".version 8.0 .target sm_75 .global .u32 x = 5;").managed(), Ok(Variables::new()));
}

#[test]
fn text_takes_the_addresses_and_nothing_else_changes() {
    let placed = image(TEXT).with_managed(&places()).unwrap();
    assert!(placed.left_out.is_empty());
    let text = String::from_utf8(placed.image.bytes.to_vec()).unwrap();
    assert!(!placed.image.index().managed && placed.image.managed() == Ok(Variables::new()));
    for line in [
        ".visible .global .align 8 .u64 into = 4294967296;",
        ".global .align 8 .u64 more[3] = {8589934672, counter2, 8589934584};",
        "{ .reg .b64 %mrcuda_managed_0; mov.b64 %mrcuda_managed_0, 4294967296; mov.u64 \t%rd4, %mrcuda_managed_0; } // counter",
        "{ .reg .b64 %mrcuda_managed_0; mov.b64 %mrcuda_managed_0, 8589934616; @%p1 ld.global.u32 \t%r7, [%mrcuda_managed_0]; }",
        "$L__BB0_2:",
        "{ .reg .b64 %mrcuda_managed_0; mov.b64 %mrcuda_managed_0, 17179869180; \
         st.global.v2.u32 \t[%mrcuda_managed_0], {%r1, %r2}; }",
        "mov.u64 \t%rd5, counter2;",
        "st.param.b64 \t[param0+0], %mrcuda_managed_0; }",
        "[%mrcuda_managed_0], %rd8, [%mrcuda_managed_1]; }",
        ".b64 4294967296",
        ".b64 counter2",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let kept = |text: &str| text.lines().filter(|l| !l.contains("managed")).count();
    let touched =
        ["into =", "more[3]", "%rd4, counter;", "[big+24]", "[pair-4]", "], elsewhere", "[counter], %rd8", ".b64 counter\n"];
    let same = TEXT.lines().filter(|l| text.lines().any(|t| t == *l)).count();
    assert_eq!(same, kept(TEXT) - touched.len(), "{text}");
}

#[test]
fn text_that_is_not_understood_is_refused() {
    let head = ".version 8.0 .target sm_75 .global .attribute(.managed) .u32 counter;";
    let at = Addresses::from([("counter".to_owned(), 4096)]);
    for (more, why) in [
        (".entry k() { .reg .b64 counter; }", "counter is named in a declaration inside of a function"),
        (".entry k() { counter: ret; }", "counter is named as a label"),
        (".entry k() { ld.u32 %r1, counter[2]; }", "counter is named with an index"),
        (".entry k() { ld.u32 %r1, [counter+x]; }", "counter is named in a sum that is not known"),
        (".entry k() { ld.u32 %r1, [counter+4+4]; }", "counter is named in a sum that is not known"),
        (".entry k(.param .u32 counter) { ret; }", "counter is named in a declaration"),
        (".entry k() { ld.u32 %r1, [counter]", "a statement does not end"),
        (".entry k() { ret;", "a function does not end"),
        (".global .b8 x[8] = {0xFF(counter)};", "counter is named byte by byte in a first value"),
        (".global .u64 x = generic(counter+4);", "counter is named in a sum that is not known"),
        (".global .u64 x = counter*2;", "counter is named in a first value that is not known"),
        (".extern .global .u32 counter;", "counter is named in a declaration"),
        (
            ".entry k() { .global .attribute(.managed) .u32 own; ret; }",
            "a managed variable is declared in a way that is not known",
        ),
        (".global .attribute(.managed) .u32 a, b;", "a managed variable is declared in a way that is not known"),
        (".global .attribute(.managed) .b8 a[] = {1};", "it is not said how large a is"),
        (".global .attribute(.managed) .u64 a = k;", "the first value of a is not known"),
        (".global .attribute(.managed) .f32 a = 1.5;", "the first value of a is not known"),
        (".global .attribute(.managed) .u8 a[1] = {1, 2};", "the first value of a is not known"),
        (".global .attribute(.managed) .b8 a[0x7FFFFFFFFFFFFFFF];", "a managed variable of 9223372036854775807 bytes"),
    ] {
        let code = image(&format!("{head} {more}"));
        let refused = code.managed().and_then(|_| code.with_managed(&at).map(drop));
        let why = [why.to_owned(), format!("code for sm_75: {why}")];
        assert!(refused.as_ref().is_err_and(|e| why.contains(&e.to_string())), "{more}: {refused:?}");
    }
}
